package devpg

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestStandby_FollowsAndIsPromoted: what the primary commits is read on the standby, which takes
// no writes until it is promoted, and keeps the URL's role, password and database. Broken once:
// a copy without --write-recovery-conf, which is a second primary.
func TestStandby_FollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	settings := map[string]string{"max_connections": "50"}
	start := func(cfg Config) (*Server, *pgx.Conn) {
		cfg.Ephemeral = true
		s, err := Start(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
		conn, err := pgx.Connect(ctx, s.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return s, conn
	}
	primary, writer := start(Config{Settings: settings})
	if _, err := writer.Exec(ctx, "CREATE TABLE things (n int); INSERT INTO things VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	standby, reader := start(Config{StandbyOf: primary})
	if _, err := writer.Exec(ctx, "INSERT INTO things VALUES (2)"); err != nil {
		t.Fatal(err)
	}
	for n := 0; n != 2; time.Sleep(10 * time.Millisecond) {
		if err := reader.QueryRow(ctx, "SELECT count(*) FROM things").Scan(&n); err != nil {
			t.Fatalf("read what the primary wrote: %v", err)
		}
	}
	if _, err := reader.Exec(ctx, "INSERT INTO things VALUES (3)"); err == nil {
		t.Error("the standby takes writes")
	}
	primary.Kill()
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(ctx, "INSERT INTO things VALUES (3)"); err != nil {
		t.Errorf("the promoted standby: %v", err)
	}
	if err := standby.Restart(ctx); err != nil {
		t.Fatalf("restart what was promoted: %v", err)
	}
	again, err := pgx.Connect(ctx, standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close(ctx)
	if _, err := again.Exec(ctx, "INSERT INTO things VALUES (4)"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}
