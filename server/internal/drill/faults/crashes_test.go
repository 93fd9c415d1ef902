package faults

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/drill"
)

// TestB15_CrashBetweenResultAndFollowUp: replicas are killed at random while executions of two
// steps after each other are reported, some with failures. After each kill what is committed is
// whole: a parent that succeeded has released its child, a failure with attempts left has its
// next one asked for, and each has its event. In the end all is done. Broken once: reports whose
// scheduling requests are written in a transaction that comes after theirs.
func TestB15_CrashBetweenResultAndFollowUp(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{args: []string{"--sink", "log", "--events", "all", "--log-level", "warn"}})
	l := startLoad(t, c, loadConfig{
		producers: 4, workers: sized(12, 40), executions: sized(60, 500), chain: true, pause: sized(100*time.Millisecond, 50*time.Millisecond),
	})
	l.progress(30*time.Second, "before any kill")
	kills := sized(4, 200)
	for range kills {
		victim := c.replicas[rand.IntN(len(c.replicas))]
		time.Sleep(rand.N(300 * time.Millisecond)) // the case itself: at random
		victim.kill()
		broken, err := drill.Check(t.Context(), c.url)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range broken {
			t.Errorf("after a kill of %s: %s", victim.name, b)
		}
		l.progress(goOnLimit, "after a kill")
		victim.start()
	}
	l.finish()
	if n := c.number(`SELECT count(*) FROM attempts WHERE state = 'FAILED' AND next_due IS NOT NULL`); n == 0 {
		t.Error("no attempt failed and was to be tried again: this tries little")
	}
}
