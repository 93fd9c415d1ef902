package faults

import (
	"context"
	"testing"
	"time"
)

// TestB89_PostgresRestartsAndCrashes: PostgreSQL is restarted three times and then killed,
// under load. The service goes on by itself, and what was answered OK is not lost.
func TestB89_PostgresRestartsAndCrashes(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{ownDatabase: true})
	l := startLoad(t, c, loadConfig{producers: 8, workers: sized(25, 50), executions: sized(200, 5_000), pause: sized(150*time.Millisecond, 10*time.Millisecond)})
	l.progress(30*time.Second, "before any fault")
	for range 3 {
		c.pg.Down(t.Context())
		again(t, c)
		t.Logf("after a restart of PostgreSQL work went on within %s", l.progress(goOnLimit, "after a restart of PostgreSQL"))
		time.Sleep(sized(time.Second, 10*time.Second)) // the case's own pace
	}
	c.pg.Kill()
	again(t, c)
	t.Logf("after kill -9 of PostgreSQL work went on within %s", l.progress(goOnLimit, "after kill -9 of PostgreSQL"))
	for _, r := range c.replicas {
		if !r.running() {
			t.Errorf("%s has ended", r.name)
		}
		servesAgain(t, r)
	}
	l.finish()
}

// again starts PostgreSQL on the same port and folder.
func again(t *testing.T, c *cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.pg.Restart(ctx); err != nil {
		t.Fatalf("restart PostgreSQL: %v", err)
	}
}
