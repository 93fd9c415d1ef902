package faults

import (
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/testsink"
)

// TestB75_EveryCommittedEventArrives: fifty clients work through three replicas, each of whose
// connections to PostgreSQL answers late by its own measure, up to half a second: transactions
// commit in another order than they began. A durable consumer of the stream has every event
// that was committed and no other, those of an execution in order. In full there are 20,000.
// Broken once: a writer that leaves the head of its execution alone if there is one, so that a
// relay which does not see its events yet removes the head under it.
func TestB75_EveryCommittedEventArrives(t *testing.T) {
	alongside(t)
	n := testsink.StartNATS(t)
	n.PutStream(testsink.Subjects)
	arrived := &testsink.Record{}
	n.Follow(arrived)
	c := newRelayed(t, clusterConfig{behindProxies: true}, n.URL())
	for _, p := range c.proxies { // the first connections, of the start, are quick
		p.AnswerUnevenly(sized(100*time.Millisecond, 500*time.Millisecond))
		p.Cut()
	}
	l := startLoad(t, c, loadConfig{
		producers: 20, workers: 30, slots: 20, executions: sized(60, 560), steps: sized(1, 10), tame: true,
		lease: 40 * time.Second, call: 30 * time.Second, poll: 50 * time.Second, // a transaction takes seconds here
	})
	l.finish()
	if events, least := c.number(`SELECT count(*) FROM outbox_events`), sized[int64](300, 20_000); events < least {
		t.Errorf("%d transitions, want %d", events, least)
	}
	c.awaitPublished(2 * time.Minute)
	sameEvents(t, c, arrived)
}
