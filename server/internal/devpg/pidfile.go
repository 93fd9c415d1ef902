package devpg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pidFile is what we read of postmaster.pid. Its lines are fixed in PostgreSQL's
// src/include/utils/pidfile.h: 1 the process, 8 its state.
type pidFile struct {
	pid   int
	ready bool
}

func pidFilePath(pgdata string) string { return filepath.Join(pgdata, "postmaster.pid") }

// readPIDFile returns the zero value if there is no file, or only a part of one.
func readPIDFile(pgdata string) (pidFile, error) {
	text, err := os.ReadFile(pidFilePath(pgdata))
	if errors.Is(err, os.ErrNotExist) {
		return pidFile{}, nil
	}
	if err != nil {
		return pidFile{}, fmt.Errorf("read postmaster.pid: %w", err)
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return pidFile{}, nil // Empty, or being written.
	}
	state := ""
	if len(lines) >= 8 {
		state = strings.TrimSpace(lines[7])
	}
	return pidFile{pid: pid, ready: state == "ready" || state == "standby"}, nil
}

// disarmPIDFile makes the file of a server that is gone harmless. PostgreSQL
// refuses to start while a process of that number lives and belongs to the same
// user, though it may be another program's, or a zombie. It makes an exception
// for the number of its own parent, which is us: so that is what we write. The
// rest stays, for PostgreSQL looks there for the shared memory of backends that
// might still live. The caller has made sure that no server works in the folder.
func disarmPIDFile(pgdata string) error {
	path := pidFilePath(pgdata)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read a stale postmaster.pid: %w", err)
	}
	first, rest, whole := strings.Cut(string(text), "\n")
	if _, err := strconv.Atoi(strings.TrimSpace(first)); err != nil || !whole {
		// Cut short by a crash of the machine; PostgreSQL refuses such a file.
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove a broken postmaster.pid: %w", err)
		}
		return nil
	}
	// Written in place: the file goes on belonging to PostgreSQL's user.
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"+rest), 0o600); err != nil {
		return fmt.Errorf("disarm a stale postmaster.pid: %w", err)
	}
	return nil
}
