package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/devpg"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// ownServer is a PostgreSQL of the test's own, migrated, which ends with it.
func ownServer(t *testing.T, settings map[string]string) *devpg.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pg, err := devpg.Start(ctx, devpg.Config{Ephemeral: true, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Stop(context.Background()) })
	if err := postgres.Migrate(ctx, pg.URL(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return pg
}

// standby is a copy of a primary that follows it asynchronously, as PostgreSQL's own tools make it.
type standby struct {
	t    *testing.T
	dir  string
	port string
	url  string
	who  *syscall.Credential // nil: ourselves
	bin  string
}

func newStandby(t *testing.T, primary *devpg.Server) *standby {
	t.Helper()
	real, err := filepath.EvalSymlinks(filepath.Join(primary.Binaries().Dir, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	b := &standby{t: t, bin: filepath.Dir(real)}
	for _, program := range []string{"pg_basebackup", "postgres"} {
		if _, err := os.Stat(filepath.Join(b.bin, program)); err != nil {
			t.Skipf("no %s beside the other programs: %v", program, err)
		}
	}
	b.admitReplication(primary.URL())
	parent, err := os.MkdirTemp("", "leasehold-standby-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if b.who != nil {
		if err := os.Chown(parent, int(b.who.Uid), int(b.who.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	b.dir = filepath.Join(parent, "data")
	b.port = freePort(t)
	b.url = strings.Replace(primary.URL(), portOf(t, primary.URL()), b.port, 1)
	out, err := b.command("pg_basebackup", "-d", primary.URL(), "-D", b.dir, "-R", "-X", "stream", "-c", "fast").CombinedOutput()
	if err != nil {
		t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	b.start()
	return b
}

// admitReplication lets the loopback copy the primary, and finds out whose files they are.
func (b *standby) admitReplication(url string) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), url)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var hba, data string
	if err := conn.QueryRow(b.t.Context(), "SELECT current_setting('hba_file'), current_setting('data_directory')").Scan(&hba, &data); err != nil {
		b.t.Fatal(err)
	}
	f, err := os.OpenFile(hba, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := f.WriteString("host replication all 127.0.0.1/32 scram-sha-256\n"); err != nil {
		b.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.t.Fatal(err)
	}
	if _, err := conn.Exec(b.t.Context(), "SELECT pg_reload_conf()"); err != nil {
		b.t.Fatal(err)
	}
	info, err := os.Stat(data)
	if err != nil {
		b.t.Fatal(err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		b.who = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
}

func (b *standby) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(b.bin, program), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.who, Setpgid: true}
	return cmd
}

func (b *standby) start() {
	b.t.Helper()
	cmd := b.command("postgres", "-D", b.dir, "-c", "port="+b.port, "-c", "unix_socket_directories=", "-c", "listen_addresses=127.0.0.1")
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // at once; nothing is to be kept
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if err := b.exec("SELECT 1"); err == nil {
			return
		} else if time.Now().After(deadline) {
			b.t.Fatalf("the standby did not start: %v", err)
		}
	}
}

func (b *standby) exec(statements ...string) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), 60*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func portOf(t *testing.T, url string) string {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(c.Port)
}

// Rule 8. A standby that had not received the last grants is promoted. What it draws is greater
// than everything that the lost primary gave, although its sequence has gone back. Caught:
// DrawLeaseVersions without the WAL's timeline.
func TestLeaseVersion_GrowsOverAPromotion(t *testing.T) {
	t.Parallel()
	primary := ownServer(t, map[string]string{"fsync": "off"})
	b := newStandby(t, primary)
	s := standOn(t, primary.URL(), postgres.Config{Events: task.AllEventTypes()})
	s.enqueue(spec("a", 1))
	w := s.register("w", "a", 5)
	highest := s.leaseOne(w, time.Minute).LeaseVersion
	// From here on nothing reaches the standby: the grants that follow are lost with the primary.
	if err := b.waitFor(s); err != nil {
		t.Fatal(err)
	}
	if err := b.exec("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	s.eventually("the end of the replication", func() bool { return query[int](s, "SELECT count(*) FROM pg_stat_replication") == 0 })
	versions, err := s.store.DrawVersions(t.Context(), 500)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		if v <= highest {
			t.Fatalf("version %d after %d", v, highest)
		}
		highest = v
	}
	s.sql.Close()
	s.store.Close()
	primary.Kill()
	if err := b.exec("SELECT pg_promote(true, 60)"); err != nil {
		t.Fatal(err)
	}
	b.grantsAbove(highest)
}

// waitFor waits until the standby has the execution and the lease.
func (b *standby) waitFor(s *stand) error {
	at := query[string](s, "SELECT pg_current_wal_lsn()::text")
	var err error
	s.eventually("the standby", func() bool {
		err = b.exec("SELECT 1 / (pg_last_wal_replay_lsn() >= '" + at + "')::int")
		return err == nil
	})
	return err
}

// grantsAbove leases the same step anew on the promoted standby.
func (b *standby) grantsAbove(highest int64) {
	b.t.Helper()
	s := standOn(b.t, b.url, postgres.Config{Events: task.AllEventTypes()})
	s.exec("UPDATE leases SET expires_at = now() - interval '1 hour'")
	if swept, err := s.store.ExpireLeases(b.t.Context(), scheduler.SweepBatch{}); err != nil || swept.Done != 1 {
		b.t.Fatalf("sweep on the promoted standby: %v, %+v", err, swept)
	}
	l := s.leaseOne(s.register("w", "a", 5), time.Minute)
	const low = 1<<40 - 1
	b.t.Logf("before the promotion %d (timeline %d, number %d), after it %d (timeline %d, number %d)",
		highest, highest>>40, highest&low, l.LeaseVersion, l.LeaseVersion>>40, l.LeaseVersion&low)
	if l.LeaseVersion <= highest {
		b.t.Errorf("lease_version went back from %d to %d", highest, l.LeaseVersion)
	}
	if l.LeaseVersion&low >= highest&low {
		b.t.Errorf("the sequence did not go back: the test shows nothing")
	}
	s.sane()
}

// Rule 8. Where the WAL's timeline cannot be asked for, the epoch stands for it. Caught: a
// draw that ignores Config.Epoch.
func TestLeaseVersion_OfAnEpoch(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	last := int64(0)
	for _, epoch := range []int64{0, 7, 8} {
		s.store = s.open(postgres.Config{Epoch: epoch})
		versions, err := s.store.DrawVersions(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range versions {
			if v <= last || epoch > 0 && v>>40 != epoch || epoch == 0 && v>>40 != 1 {
				t.Errorf("epoch %d draws %d (%d << 40 | %d) after %d", epoch, v, v>>40, v&(1<<40-1), last)
			}
			last = v
		}
	}
}
