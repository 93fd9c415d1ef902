package devpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	ephemeralPrefix = "leasehold-pg-"
	socketPrefix    = "leasehold-s-"
	// maxSocketPath is the shortest limit of the systems we run on (104 bytes
	// with the final zero, on macOS), and a little less.
	maxSocketPath = 100
)

// folder is a data folder that we hold the lock of.
type folder struct {
	path string
	lock *folderLock
	who  account
}

func (f *folder) pgdata() string   { return filepath.Join(f.path, "pgdata") }
func (f *folder) logFile() string  { return filepath.Join(f.path, "postgres.log") }
func (f *folder) password() string { return filepath.Join(f.path, "password") }

// openFolder makes a folder if it is absent, and takes its lock.
func openFolder(ctx context.Context, path string) (*folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	who, err := ownerOf(filepath.Join(path, "pgdata"))
	if err != nil {
		return nil, err
	}
	if err := makeReachable(ctx, path, who); err != nil {
		return nil, err
	}
	// Processes are recognised by their working directory, which has no links.
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(path, "PG_VERSION")); err == nil {
		return nil, fmt.Errorf("%s is a PostgreSQL folder itself; choose another one, or a new one", path)
	}
	lock, err := lockFolder(path)
	if err != nil {
		return nil, err
	}
	return &folder{path: path, lock: lock, who: who}, nil
}

// makeReachable makes a folder and its parents, but only where the account can
// reach it; else nothing is made.
func makeReachable(ctx context.Context, path string, who account) error {
	var missing []string
	existing := path
	for {
		info, err := os.Stat(existing)
		if err == nil {
			if !info.IsDir() {
				return fmt.Errorf("data folder %s: %s is not a folder", path, existing)
			}
			break
		}
		if !errors.Is(err, os.ErrNotExist) || existing == filepath.Dir(existing) {
			return fmt.Errorf("data folder: %w", err)
		}
		missing = append([]string{existing}, missing...)
		existing = filepath.Dir(existing)
	}
	blocked, err := who.blockedAt(ctx, existing)
	if err != nil {
		return err
	}
	if blocked != "" {
		return &UnreachableError{DataDir: path, Parent: blocked, User: who.name}
	}
	mode := os.FileMode(0o700)
	if who.credential != nil {
		mode = 0o755
	}
	for _, dir := range missing {
		if err := makeWithMode(dir, mode); err != nil {
			return err
		}
	}
	return nil
}

// makeWithMode makes a folder with just that mode, whatever the umask.
func makeWithMode(dir string, mode os.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil // Somebody else was faster.
		}
		return fmt.Errorf("make the data folder: %w", err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	return nil
}

// openEphemeral makes a temporary folder, after removing those that processes
// left that were killed.
func openEphemeral(ctx context.Context) (*folder, error) {
	who, err := unprivileged()
	if err != nil {
		return nil, err
	}
	base := os.TempDir()
	if blocked, err := who.blockedAt(ctx, base); err != nil || blocked != "" {
		base = "/tmp"
	}
	removeLeftEphemerals(ctx, base)
	path, err := os.MkdirTemp(base, ephemeralPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a temporary data folder: %w", err)
	}
	if who.credential != nil {
		// #nosec G302 -- PostgreSQL's user must get to its own folder, further down.
		err = os.Chmod(path, 0o711)
	}
	if err == nil {
		var f *folder
		if f, err = openFolder(ctx, path); err == nil {
			return f, nil
		}
	}
	return nil, errors.Join(err, os.RemoveAll(path))
}

// removeLeftEphemerals removes the temporary folders of dead owners. It is a
// courtesy: what fails is left for another time.
func removeLeftEphemerals(ctx context.Context, base string) {
	paths, _ := filepath.Glob(filepath.Join(base, ephemeralPrefix+"*")) // The only error is a malformed pattern.
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() {
			continue
		}
		// A folder so new may belong to a process that is about to lock it.
		if time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() {
			continue
		}
		if f, err := openFolder(ctx, path); err == nil {
			if endOrphans(ctx, f.path, f.pgdata()) == nil {
				_ = f.remove()
			}
			f.lock.release()
		}
	}
}

// remove deletes the folder; the lock is still to be released.
func (f *folder) remove() error {
	f.removeSocketDir()
	if err := removeAll(f.path); err != nil {
		return fmt.Errorf("remove the temporary data folder: %w", err)
	}
	return nil
}

// removeAll tries for a few seconds: a process that is just ending may write
// into the folder while it is removed.
func removeAll(path string) error {
	for tries := 0; ; tries++ {
		err := os.RemoveAll(path)
		if err == nil || tries == 50 {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// makeSocketDir returns an empty folder for the UNIX socket, inside the data
// folder unless that makes the path longer than systems allow. What an earlier
// server left is removed.
func (f *folder) makeSocketDir() (string, error) {
	f.removeSocketDir()
	dir := filepath.Join(f.path, "run")
	if len(dir)+len("/.s.PGSQL.65535") <= maxSocketPath {
		return dir, f.who.mkdir(dir)
	}
	dir, err := os.MkdirTemp("/tmp", socketPrefix)
	if err != nil {
		return "", fmt.Errorf("make a folder for the socket: %w", err)
	}
	if err := f.who.own(dir); err != nil {
		return "", err
	}
	// Noted, so that the next start finds it if we are killed.
	if err := os.WriteFile(f.socketNote(), []byte(dir), 0o600); err != nil {
		return "", fmt.Errorf("note the folder of the socket: %w", err)
	}
	return dir, nil
}

func (f *folder) socketNote() string { return filepath.Join(f.path, "socket-dir") }

func (f *folder) removeSocketDir() {
	_ = os.RemoveAll(filepath.Join(f.path, "run"))
	text, err := os.ReadFile(f.socketNote())
	if err != nil {
		return
	}
	if dir := string(text); filepath.Dir(dir) == "/tmp" && strings.HasPrefix(filepath.Base(dir), socketPrefix) {
		_ = os.RemoveAll(dir)
	}
	_ = os.Remove(f.socketNote())
}

// rotateLog keeps the log of the start before under the name postgres.log.1.
func (f *folder) rotateLog() error {
	if err := os.Rename(f.logFile(), f.logFile()+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("rotate PostgreSQL's log: %w", err)
	}
	return nil
}
