package bench

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestSite_LeavesNothingWhenItIsInterrupted while it comes to be, wherever that is. It runs alone, so
// that what it finds is its own. Caught: a site that is not closed when it could not be made.
func TestSite_LeavesNothingWhenItIsInterrupted(t *testing.T) {
	cfg := tiny(t)
	cfg.DatabaseURL = shared.databases.New(t)
	st, err := newStage(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for i := range 9 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(i*i)*8*time.Millisecond, cancel)
		if s, err := st.newSite(ctx, 1); err == nil {
			err = s.close()
			if err != nil {
				t.Error(err)
			}
		} else if ctx.Err() == nil {
			t.Error(err)
		}
		cancel()
		var left int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_database WHERE datname LIKE 'leasehold\_bench\_%'`).Scan(&left); err != nil || left != 0 {
			t.Fatalf("interrupted after %d ms: %d databases stay, %v", i*i*8, left, err)
		}
	}
	if err := st.tearDown(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(st.folder); !os.IsNotExist(err) {
		t.Errorf("the folder stays, %v", err)
	}
}
