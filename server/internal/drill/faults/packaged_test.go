package faults

import (
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// dependency is a program that has to be installed, and Debian's package of it.
type dependency struct{ program, debian string }

// require skips the test where a program is missing.
func require(t *testing.T, all ...dependency) {
	t.Helper()
	var missing []string
	for _, d := range all {
		if _, err := exec.LookPath(d.program); err != nil {
			missing = append(missing, d.debian)
		}
	}
	if len(missing) > 0 {
		t.Skipf("not installed; on Debian: apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}
}

// packaged is a folder of a test, in which programs of other people run.
type packaged struct {
	t      *testing.T
	folder string
	who    *syscall.Credential // nil: ours
}

func newPackaged(t *testing.T) *packaged {
	t.Helper()
	s := &packaged{t: t, folder: t.TempDir()}
	s.unprivileged()
	return s
}

// unprivileged gives the folder to whom PostgreSQL runs as: neither that nor a pooler runs as root.
func (s *packaged) unprivileged() {
	s.t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		s.t.Fatal(err)
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	if errUID != nil || errGID != nil {
		s.t.Fatal(errUID, errGID)
	}
	s.who = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	// The folders above are the test's own, and closed to others.
	for dir := s.folder; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := os.Chown(s.folder, uid, gid); err != nil {
		s.t.Fatal(err)
	}
}

func (s *packaged) write(path, text string) {
	s.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// run starts a program that ends with the test; what it says is kept in a file.
func (s *packaged) run(name, program string, args ...string) *child {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.folder, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = log.Close() // only ever appended to
		if text, err := os.ReadFile(log.Name()); err == nil && s.t.Failed() {
			s.t.Logf("log of %s:\n%s", name, lastLines(text, 20))
		}
	})
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.folder, log, log
	cmd.Env = append(os.Environ(), "HOME="+s.folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.who}
	return startChild(s.t, cmd)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(l.Addr())
	}
	return address.Port
}
