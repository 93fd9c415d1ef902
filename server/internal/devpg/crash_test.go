package devpg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestKilledPostmaster_EndsTheRunWithAnExitError(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{DataDir: filepath.Join(reachableDir(t), "d")})
	execSQL(t, s.URL(), "CREATE TABLE t AS SELECT 1 AS n")
	pid := s.PID()
	kill9(t, pid)
	select {
	case <-s.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("Done was not closed")
	}
	var exit *ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.PID != pid {
		t.Fatalf("Wait: %v, want an ExitError of %d", err, pid)
	}
	if err := s.Restart(bound(t)); err != nil {
		t.Fatal(err)
	}
	if got := queryValue[int](t, s.URL(), "SELECT count(*) FROM t"); got != 1 {
		t.Errorf("%d rows, want 1", got)
	}
}

func TestSupervise_BringsPostgreSQLBackOnItsPort(t *testing.T) {
	t.Parallel()
	log := &testLog{t: t}
	s := mustStart(t, Config{DataDir: filepath.Join(reachableDir(t), "d"), Supervise: true, Log: log})
	url, done := s.URL(), s.Done()
	execSQL(t, url, "CREATE TABLE t (n int)")
	for i := range 3 {
		execSQL(t, url, fmt.Sprintf("INSERT INTO t VALUES (%d)", i))
		pid := s.PID()
		kill9(t, pid)
		eventually(t, "PostgreSQL is back", func() bool {
			now := s.PID()
			return now != 0 && now != pid
		})
		if got := queryValue[int](t, url, "SELECT count(*) FROM t"); got != i+1 {
			t.Errorf("%d rows, want %d", got, i+1)
		}
	}
	select {
	case <-done:
		t.Error("Done was closed though PostgreSQL came back")
	default:
	}
	if !strings.Contains(log.String(), "ended by itself") || !strings.Contains(log.String(), "started again") {
		t.Errorf("the log says nothing of it: %s", log)
	}
	s.Kill() // What was asked for is not undone.
	if s.PID() != 0 {
		t.Error("Kill was undone")
	}
}

func TestSupervise_StopDuringRevivalIsHeard(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{DataDir: filepath.Join(reachableDir(t), "d"), Supervise: true})
	// Nothing can be started from now on.
	good := s.bin
	s.bin.Dir = "/nonexistent"
	kill9(t, s.PID())
	eventually(t, "PostgreSQL is down", func() bool { return s.PID() == 0 })
	begin := time.Now()
	if err := s.Stop(bound(t)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Stop took %v", took)
	}
	s.bin = good
	if err := s.Restart(bound(t)); err != nil {
		t.Fatal(err)
	}
}

func TestKilledOwner_TakesPostgreSQLAlongAndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]ownerOrder{
		"death signal": {},
		// As on systems that have none: the next start ends the orphan.
		"no death signal": {NoDeathSignal: true},
		"supervised":      {Supervise: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			order.DataDir = filepath.Join(reachableDir(t), "d")
			o := startOwner(t, order)
			execSQL(t, o.URL, "CREATE TABLE t AS SELECT 1 AS n")
			o.kill9(t)
			s := mustStart(t, Config{DataDir: order.DataDir})
			if got := queryValue[int](t, s.URL(), "SELECT count(*) FROM t"); got != 1 {
				t.Errorf("%d rows, want 1", got)
			}
			if !strings.Contains(o.URL, s.password) {
				t.Error("the password changed")
			}
			if pid := s.PID(); pid == o.PID {
				t.Errorf("still the orphan, process %d", pid)
			}
		})
	}
}

func TestKilledOwner_HalfMadeFolderIsMadeAnew(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachableDir(t), "d")
	o, _ := launchOwner(t, ownerOrder{DataDir: dir})
	half := filepath.Join(dir, initPrefix+"*")
	eventually(t, "a half-made folder", func() bool {
		made, _ := filepath.Glob(filepath.Join(half, "pgdata", "base"))
		return len(made) == 1
	})
	o.kill9(t)
	s := mustStart(t, Config{DataDir: dir})
	execSQL(t, s.URL(), "SELECT 1")
	if left, _ := filepath.Glob(half); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestKilledOwner_EphemeralFolderIsRemovedByALaterStart(t *testing.T) {
	t.Parallel()
	o := startOwner(t, ownerOrder{Ephemeral: true})
	o.kill9(t)
	// The death signal must have had its effect, or PostgreSQL touches the folder.
	noneLeft(t, (&folder{path: o.DataDir}).pgdata())
	// Folders of the last minute are spared.
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(o.DataDir, old, old); err != nil {
		t.Fatal(err)
	}
	mustStart(t, Config{Ephemeral: true, Settings: map[string]string{"fsync": "off"}})
	if _, err := os.Stat(o.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", o.DataDir, err)
	}
}

func TestKill_EndsBusyBackendsToo(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{Ephemeral: true, Settings: map[string]string{"fsync": "off"}})
	conn, err := pgx.Connect(bound(t), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		// It never waits, so that it does not notice its postmaster's end.
		_, err := conn.Exec(t.Context(), "SELECT count(*) FROM generate_series(1, 1e12)")
		failed <- err
	}()
	busy := "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%generate_series(1, 1e12)' "
	eventually(t, "a busy backend", func() bool { return queryValue[int](t, s.URL(), busy) == 1 })
	s.Kill()
	if err := <-failed; err == nil {
		t.Error("the query went on")
	}
	noneLeft(t, s.folder.pgdata())
	if err := s.Restart(bound(t)); err != nil {
		t.Fatal(err)
	}
}

func TestRestart_StalePIDFilesAreNoObstacle(t *testing.T) {
	t.Parallel()
	s := mustStart(t, Config{DataDir: filepath.Join(reachableDir(t), "d")})
	execSQL(t, s.URL(), "CREATE TABLE t AS SELECT 1 AS n")
	s.Kill()
	path := pidFilePath(s.folder.pgdata())
	left, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("the killed server left no postmaster.pid: %v", err)
	}
	_, rest, _ := strings.Cut(string(left), "\n")

	// A process of the same user that has got the dead postmaster's number.
	bystander := startBystander(t, s.folder.who)
	for name, text := range map[string]string{
		"number in use again": fmt.Sprintf("%d\n%s", bystander.pid, rest),
		"empty":               "",
		"cut short":           "12",
		"as it was left":      string(left),
	} {
		s.Down(bound(t))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.folder.who.own(path); err != nil {
			t.Fatal(err)
		}
		if err := s.Restart(bound(t)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := queryValue[int](t, s.URL(), "SELECT count(*) FROM t"); got != 1 {
		t.Errorf("%d rows, want 1", got)
	}
	select {
	case <-bystander.exited:
		t.Error("the bystander was ended")
	default:
	}
}
