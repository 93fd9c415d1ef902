package faults

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/testsink"
)

// TestB86_ListenerLost: the connections on which replicas listen for hints are ended five
// times, each time while a worker's poll is parked at one replica and work comes through the
// other. The work is leased all the same, and at most 5 s later within a second again; the
// replicas listen again, and the logs have no line more than a second. Broken once: a listener
// that ends with its connection.
func TestB86_ListenerLost(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{replicas: 2})
	a, b := dial(t, c.replicas[0].addr), dial(t, c.replicas[1].addr)
	h := newHand(t, b, 1, "b86")
	began, lines := time.Now(), c.logLines()
	for range 5 {
		var leased []time.Duration
		ended := time.Now()
		parked := h.park(b, 50*time.Second, time.Minute)
		c.endListeners()
		for first := true; first || time.Since(ended) < sized(1500*time.Millisecond, 6*time.Second); first = false {
			asked := time.Now()
			enqueue(t, a, 1, "b86")
			got := <-parked
			if got.err != nil || len(got.leases) != 1 {
				t.Fatalf("got %v, %v; want a lease", got.leases, got.err)
			}
			leased = append(leased, got.at.Sub(asked))
			if err := h.succeed(t.Context(), b, got.leases[0]); err != nil {
				t.Fatal(err)
			}
			parked = h.park(b, 50*time.Second, time.Minute)
			time.Sleep(200 * time.Millisecond) // it is parked by then, mostly
		}
		back := eventually(t, 5*time.Second+slack(), "all replicas listen again", func() bool { return c.listeners() == len(c.replicas) })
		t.Logf("leased after %v; listening again after %s more", leased, back)
		for i, took := range leased {
			if limit := time.Second + slack(); took > limit && (i == len(leased)-1 || took > 5*time.Second) {
				t.Errorf("work was leased %s after it came, %s after the listeners were lost", took, time.Since(ended))
			}
		}
		enqueue(t, a, 1, "b86") // the parked poll's, and the end of this round
		if got := <-parked; got.err != nil || len(got.leases) != 1 {
			t.Fatalf("got %v, %v; want a lease", got.leases, got.err)
		} else if err := h.succeed(t.Context(), b, got.leases[0]); err != nil {
			t.Fatal(err)
		}
	}
	c.linesStayBounded(lines, began, 5*len(c.replicas)) // the losses come faster in the short form
}

// TestLogs_StayBoundedWhileAllIsAway: PostgreSQL is away for a while, then the sink. Each loop
// of a replica fails over and over; the log has about a line a second at most. Broken once:
// without the calm of the server's log.
func TestLogs_StayBoundedWhileAllIsAway(t *testing.T) {
	alongside(t)
	n := testsink.StartNATS(t)
	n.PutStream(testsink.Subjects)
	c := newRelayed(t, clusterConfig{replicas: 1, ownDatabase: true}, n.URL())
	p := dial(t, c.replicas[0].addr)
	enqueue(t, p, 20, "nobody")
	c.awaitPublished(30 * time.Second)

	newHand(t, p, 1, "other").park(p, 50*time.Second, time.Minute) // so that there is a dispatcher at work too
	began, lines := time.Now(), c.logLines()
	c.pg.Down(t.Context())
	time.Sleep(sized(6*time.Second, time.Minute))
	again(t, c)
	servesAgain(t, c.replicas[0])
	c.db.Reset()
	c.linesStayBounded(lines, began, 10)

	n.Stop()
	began, lines = time.Now(), c.logLines()
	enqueue(t, p, 200, "nobody")
	time.Sleep(sized(6*time.Second, time.Minute))
	if c.events("PUBLISHED") == int(c.number(`SELECT count(*) FROM outbox_events`)) {
		t.Error("no event waits: is the sink away?")
	}
	n.Start()
	c.awaitPublished(30 * time.Second)
	c.linesStayBounded(lines, began, 10)
	if n := c.number(`SELECT count(*) FROM outbox_events WHERE attempts > 3`); n > 0 {
		t.Errorf("%d events used up tries while the sink was away", n)
	}
}

// linesStayBounded fails the test if the replicas logged more than a line a second each since
// then, and some.
func (c *cluster) linesStayBounded(before int, since time.Time, some int) {
	c.t.Helper()
	n, seconds := c.logLines()-before, int(time.Since(since).Seconds())+1
	c.t.Logf("%d lines in the logs of %d replicas in %d s", n, len(c.replicas), seconds)
	if n > seconds*len(c.replicas)+some {
		c.t.Errorf("%d lines in the logs of %d replicas in %d s, want about one a second each at most", n, len(c.replicas), seconds)
	}
}

// listening is the sessions that listen for hints, of any replica.
const listening = `FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %' AND usename = ANY ($1)`

func (c *cluster) roles() []string {
	var roles []string
	for _, r := range c.replicas {
		roles = append(roles, r.role)
	}
	return roles
}

// listeners is how many sessions listen for hints.
func (c *cluster) listeners() int {
	c.t.Helper()
	return int(c.number(`SELECT count(*) `+listening, c.roles()))
}

// endListeners ends the sessions that listen, all of them.
func (c *cluster) endListeners() {
	c.t.Helper()
	eventually(c.t, 20*time.Second, "a listener of each replica", func() bool { return c.listeners() == len(c.replicas) })
	if n := c.number(`SELECT count(pg_terminate_backend(pid)) `+listening, c.roles()); n != int64(len(c.replicas)) {
		c.t.Fatalf("ended %d listeners, want %d", n, len(c.replicas))
	}
}

// logLines is how many lines the replicas have logged.
func (c *cluster) logLines() int {
	c.t.Helper()
	n := 0
	for _, r := range c.replicas {
		log, err := os.ReadFile(r.logPath)
		if err != nil {
			c.t.Fatal(err)
		}
		n += bytes.Count(log, []byte("\n"))
	}
	return n
}
