package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// standby is a copy of a primary that follows it asynchronously.
type standby struct {
	*devpg.Server
	t *testing.T
}

func newStandby(t *testing.T, primary *devpg.Server) *standby {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	follower, err := devpg.Start(ctx, devpg.Config{Ephemeral: true, StandbyOf: primary})
	if errors.Is(err, devpg.ErrNoBasebackup) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = follower.Stop(context.Background()) })
	return &standby{Server: follower, t: t}
}

func (b *standby) exec(statements ...string) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), 60*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, b.URL())
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
	if err := b.Promote(t.Context()); err != nil {
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
	s := standOn(b.t, b.URL(), postgres.Config{Events: task.AllEventTypes()})
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
