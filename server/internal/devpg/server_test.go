package devpg

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestStart_KeepsDataPortAndPasswordOverStopRestartAndKill(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{DataDir: filepath.Join(reachableDir(t), "deep", `an "odd", it's $x\`)})
	url, pgdata := s.URL(), s.folder.pgdata()
	execSQL(t, url, "CREATE TABLE t (n int)")

	steps := []struct {
		name string
		end  func() error
	}{
		{"restart while up", func() error { return nil }},
		{"after Down", func() error { s.Down(bound(t)); return nil }},
		{"after Kill", func() error { s.Kill(); return nil }},
		{"after Stop", func() error { return s.Stop(bound(t)) }},
	}
	for i, step := range steps {
		execSQL(t, url, "INSERT INTO t VALUES ("+strconv.Itoa(i)+")")
		if err := step.end(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if step.name != "restart while up" {
			noneLeft(t, pgdata)
			if pid := s.PID(); pid != 0 {
				t.Errorf("%s: PID is %d, want 0", step.name, pid)
			}
			if err := s.Wait(); err != nil {
				t.Errorf("%s: Wait: %v, want nil: the end was asked for", step.name, err)
			}
		}
		if err := s.Restart(bound(t)); err != nil {
			t.Fatalf("%s: Restart: %v", step.name, err)
		}
		if got := queryValue[int](t, url, "SELECT count(*) FROM t"); got != i+1 {
			t.Errorf("%s: %d rows, want %d", step.name, got, i+1)
		}
	}
	if s.URL() != url {
		t.Errorf("URL changed from %s to %s", url, s.URL())
	}
}

func TestStart_SettingsAreSafeByDefaultAndCanBeChanged(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{Ephemeral: true, Database: `odd "name"`, Settings: map[string]string{"max_connections": "33", "application_name": `it's a \ test`}})
	want := map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "listen_addresses": "127.0.0.1",
		"max_connections": "33", "jit": "off", "TimeZone": "UTC", "max_locks_per_transaction": "256",
		"password_encryption": "scram-sha-256", "lc_collate": "C", "server_encoding": "UTF8",
	}
	for name, value := range want {
		if got := queryValue[string](t, s.URL(), "SELECT current_setting('"+name+"')"); got != value {
			t.Errorf("%s = %s, want %s", name, got, value)
		}
	}
	if got := queryValue[string](t, s.URL(), "SELECT reset_val FROM pg_settings WHERE name = 'application_name'"); got != `it's a \ test` {
		t.Errorf("application_name = %s", got)
	}
	if got := queryValue[string](t, s.URL(), "SELECT current_database()::text"); got != `odd "name"` {
		t.Errorf("database = %s", got)
	}
}

func TestStart_WantsThePasswordOverLoopback(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{Ephemeral: true, Settings: map[string]string{"fsync": "off"}})
	conf, err := pgx.ParseConfig(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if conf.Password == "" {
		t.Error("URL has no password")
	}
	conf.Password = "wrong"
	if conn, err := pgx.ConnectConfig(bound(t), conf); err == nil {
		_ = conn.Close(context.Background())
		t.Error("a wrong password was let in")
	}
	for path, mode := range map[string]os.FileMode{s.folder.password(): 0o600, s.socketDir: 0o700, s.folder.pgdata(): 0o700} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != mode {
			t.Errorf("%s has mode %o, want %o", path, got, mode)
		}
	}
}

func TestStart_RefusesSettingsThatAreOurs(t *testing.T) {
	t.Parallel()
	for _, settings := range []map[string]string{
		{"port": "5432"}, {"listen_addresses": "*"}, {"x\ny": "1"}, {"": "1"}, {"work_mem": "1MB\nport=1"},
	} {
		if _, err := Start(bound(t), Config{Ephemeral: true, Settings: settings}); err == nil {
			t.Errorf("%q was accepted", settings)
		}
	}
	if _, err := Start(bound(t), Config{Ephemeral: true, DataDir: "x"}); err == nil {
		t.Error("an ephemeral server with a data folder was accepted")
	}
	if _, err := Start(bound(t), Config{Ephemeral: true, Port: 70000}); err == nil {
		t.Error("port 70000 was accepted")
	}
}

func TestStart_SaysWhatPostgreSQLSaid(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachableDir(t), "d")
	_, err := Start(bound(t), Config{DataDir: dir, Settings: map[string]string{"no_such_setting": "1"}})
	var start *StartError
	if !errors.As(err, &start) || !strings.Contains(start.LogTail, "no_such_setting") {
		t.Errorf("got %v, want a StartError with the log's end", err)
	}
	// The folder was given back, and is whole.
	mustStart(t, Config{DataDir: dir})
}

func TestStart_SecondOwnerIsToldWhoHoldsTheFolder(t *testing.T) {
	t.Parallel()
	o := startOwner(t, ownerOrder{DataDir: filepath.Join(reachableDir(t), "d")})
	_, err := Start(bound(t), Config{DataDir: o.DataDir})
	var busy *InUseError
	if !errors.As(err, &busy) {
		t.Fatalf("got %v, want an InUseError", err)
	}
	if busy.PID != o.cmd.Process.Pid || busy.DataDir != o.DataDir || !strings.Contains(err.Error(), strconv.Itoa(o.cmd.Process.Pid)) {
		t.Errorf("got %v, want process %d on %s", err, o.cmd.Process.Pid, o.DataDir)
	}
	execSQL(t, o.URL, "SELECT 1") // The first one is unharmed.
}

func TestStart_LongPathHasItsSocketElsewhere(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachableDir(t), strings.Repeat("long", 30))
	s := mustStart(t, Config{DataDir: dir, Settings: map[string]string{"fsync": "off"}})
	socketDir := s.socketDir
	if strings.HasPrefix(socketDir, dir) || len(socketDir) > maxSocketPath-20 {
		t.Errorf("socket in %s", socketDir)
	}
	s.Kill()
	if err := s.Restart(bound(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socketDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's folder of the killed server is still there: %v", err)
	}
	if err := s.Stop(bound(t)); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(s.socketDir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStart_UnreachableFolderIsAClearError(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs PostgreSQL as another user")
	}
	home := filepath.Join(reachableDir(t), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(home, "a", "b")
	_, err := Start(bound(t), Config{DataDir: dir})
	var closed *UnreachableError
	if !errors.As(err, &closed) || closed.Parent != home {
		t.Fatalf("got %v, want an UnreachableError at %s", err, home)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made on the way: %v", err)
	}
}

func TestStart_RefusesFolderOfAnotherKind(t *testing.T) {
	t.Parallel()
	theirs := reachableDir(t)
	if err := os.WriteFile(filepath.Join(theirs, "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(bound(t), Config{DataDir: theirs}); err == nil {
		t.Error("a PostgreSQL folder of somebody else was taken")
	}
	old := filepath.Join(reachableDir(t), "d")
	if err := os.MkdirAll(filepath.Join(old, "pgdata"), 0o755); err != nil {
		t.Fatal(err)
	}
	if who, err := unprivileged(); err != nil || who.own(filepath.Join(old, "pgdata")) != nil {
		t.Fatal("cannot prepare the folder")
	}
	if err := os.WriteFile(filepath.Join(old, "pgdata", "PG_VERSION"), []byte("9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Start(bound(t), Config{DataDir: old})
	var version *VersionError
	if !errors.As(err, &version) || version.Folder != 9 {
		t.Errorf("got %v, want a VersionError", err)
	}
}

func TestStart_TakenPortIsAnError(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{Ephemeral: true, Settings: map[string]string{"fsync": "off"}})
	if _, err := Start(bound(t), Config{Ephemeral: true, Port: s.port}); err == nil {
		t.Error("two servers on one port")
	}
}

func TestStart_ForeignServerIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{DataDir: filepath.Join(reachableDir(t), "d")})
	if err := s.Stop(bound(t)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(s.bin.postgres(), "-D", s.folder.pgdata(), "-c", "unix_socket_directories=")
	cmd.Dir = s.folder.pgdata()
	c, err := startChild(cmd, s.folder.who, true)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a server that somebody else started", func() bool {
		file, err := readPIDFile(s.folder.pgdata())
		return err == nil && file.pid == c.pid && file.ready
	})
	_, err = Start(bound(t), Config{DataDir: s.DataDir()})
	var foreign *ForeignServerError
	if !errors.As(err, &foreign) || foreign.PID != c.pid {
		t.Errorf("got %v, want a ForeignServerError", err)
	}
	select {
	case <-c.exited:
		t.Error("the other server was ended")
	default:
	}
	s.crash(c)
}

func TestStop_EphemeralLeavesNothing(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{Ephemeral: true, Settings: map[string]string{"fsync": "off"}})
	execSQL(t, s.URL(), "CREATE TABLE t (n int)")
	s.Kill()
	if err := s.Restart(bound(t)); err != nil {
		t.Fatal(err)
	}
	execSQL(t, s.URL(), "INSERT INTO t VALUES (1)")
	if err := s.Stop(bound(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.DataDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", s.DataDir())
	}
	if err := s.Restart(bound(t)); !errors.Is(err, ErrRemoved) {
		t.Errorf("Restart after Stop: %v, want ErrRemoved", err)
	}
	if err := s.Stop(bound(t)); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestStop_DoesNotWaitForClientsOrForDeadContexts(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{Ephemeral: true, Settings: map[string]string{"fsync": "off"}})
	conn, err := pgx.Connect(bound(t), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(bound(t), "BEGIN; CREATE TABLE t (n int)"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	begin := time.Now()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Stop took %v", took)
	}
}
