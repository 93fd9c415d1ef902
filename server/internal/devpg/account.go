package devpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// account is who PostgreSQL runs as.
type account struct {
	name string
	// credential is nil if that is who we are.
	credential *syscall.Credential
}

// unprivileged is ourselves, or, when we are root, the user postgres, else
// nobody.
func unprivileged() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "uid " + strconv.Itoa(os.Geteuid())}, nil
	}
	var last error
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			last = err
			continue
		}
		return accountOf(u)
	}
	return account{}, fmt.Errorf("find an unprivileged user to run PostgreSQL as: %w", last)
}

func accountOf(u *user.User) (account, error) {
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %s: %w", u.Username, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("group of user %s: %w", u.Username, err)
	}
	return account{name: u.Username, credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// ownerOf is who owns an existing PostgreSQL folder: the server runs as nobody
// else, even if a user postgres has come into being since the folder was made.
func ownerOf(pgdata string) (account, error) {
	who, err := unprivileged()
	if err != nil || who.credential == nil {
		return who, err
	}
	info, err := os.Stat(pgdata)
	if errors.Is(err, os.ErrNotExist) {
		return who, nil
	}
	if err != nil {
		return who, fmt.Errorf("find the owner of a data folder: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == who.credential.Uid {
		return who, nil
	}
	if owner.Uid == 0 {
		return who, fmt.Errorf("%s belongs to root, under whom PostgreSQL refuses to run", pgdata)
	}
	return account{
		name:       "uid " + strconv.Itoa(int(owner.Uid)),
		credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid},
	}, nil
}

// own gives a file or folder to the account.
func (a account) own(path string) error {
	if a.credential == nil {
		return nil
	}
	if err := os.Chown(path, int(a.credential.Uid), int(a.credential.Gid)); err != nil {
		return fmt.Errorf("hand over to %s: %w", a.name, err)
	}
	return nil
}

// mkdir makes a folder that only the account can enter.
func (a account) mkdir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	return a.own(path)
}

// blockedAt returns the first folder on the way to dir that the account may not
// enter, or "". It asks the kernel, by a shell that runs as the account: mode
// bits alone do not tell (access lists, security modules).
func (a account) blockedAt(ctx context.Context, dir string) (string, error) {
	if a.credential == nil {
		return "", nil
	}
	chain := []string{dir}
	for parent := filepath.Dir(dir); parent != chain[0]; parent = filepath.Dir(parent) {
		chain = slices.Insert(chain, 0, parent)
	}
	const script = `for d do cd "$d" 2>/dev/null || { printf %s "$d"; exit 0; }; done`
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "sh"}, chain...)...)
	cmd.Dir = "/"
	cmd.Env = childEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask whether %s may enter %s: %w", a.name, dir, err)
	}
	return strings.TrimSpace(string(out)), nil
}
