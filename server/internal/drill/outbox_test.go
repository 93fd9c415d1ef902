package drill

import (
	"context"
	"slices"
	"testing"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/natspub"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/testsink"
	"github.com/leasehold/leasehold/server/internal/webhook"
)

const eventSource = "/drill"

// toNATS makes publishers to a NATS server.
func toNATS(t *testing.T, n *testsink.NATS) func() (outbox.Publisher, error) {
	t.Helper()
	return func() (outbox.Publisher, error) {
		return natspub.New(t.Context(), natspub.Config{URL: n.URL(), Source: eventSource})
	}
}

// toReceiver makes publishers to a receiver of webhooks.
func toReceiver(r *testsink.Receiver) func() (outbox.Publisher, error) {
	return func() (outbox.Publisher, error) {
		return webhook.New(webhook.Config{URL: r.URL, Source: eventSource})
	}
}

// newPublishing starts replicas with relays.
func newPublishing(t *testing.T, replicas int, sink func() (outbox.Publisher, error), relay outbox.Config) *world {
	t.Helper()
	return newWorld(t, func(c *Config) { c.Replicas, c.Publisher, c.Relay = replicas, sink, relay })
}

// run enqueues n executions of one step and has them done.
func (w *world) run(h *hand, n int) []string {
	w.t.Helper()
	ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	h.finish(n)
	return ids
}

// others are the events of all executions but some.
const others = `FROM outbox_events WHERE NOT aggregate_id = ANY ($1::uuid[])`

// awaitPublished waits until no event but those of the executions left out is unsettled.
func (w *world) awaitPublished(limit time.Duration, leftOut ...string) {
	w.t.Helper()
	for began := time.Now(); ; time.Sleep(pollEvery) {
		left := w.rows(`SELECT count(*) || ' events are ' || status || ', such as ' || min(event_type) || ': ' || max(last_error)
			`+others+` AND status <> 'PUBLISHED' GROUP BY status`, append([]string{}, leftOut...))
		if len(left) == 0 {
			return
		}
		if time.Since(began) > limit {
			w.t.Fatalf("after %s: %v", limit, left)
		}
	}
}

// sameEvents fails the test unless the events that arrived are those that were committed, in
// order, but for those of the executions left out. It gives what is on its way some time.
func (w *world) sameEvents(r *testsink.Record, leftOut ...string) {
	w.t.Helper()
	committed := w.rows("SELECT id::text "+others, append([]string{}, leftOut...))
	if len(committed) == 0 {
		w.t.Error("there are no events")
	}
	var missing []string
	_ = Await(w.ctx, 20*time.Second, "all events", func(context.Context) (bool, error) {
		taken := r.IDs()
		missing = slices.DeleteFunc(slices.Clone(committed), func(id string) bool { return taken[id] })
		return len(missing) == 0, nil
	}) // what is missing tells
	for _, id := range missing {
		w.t.Errorf("event %s was committed, and did not arrive", id)
	}
	arrived := map[string]bool{}
	for _, d := range r.Deliveries() {
		if !slices.Contains(leftOut, d.Execution) {
			arrived[d.ID] = true
		}
	}
	for _, id := range committed {
		delete(arrived, id)
	}
	for id := range arrived {
		w.t.Errorf("event %s arrived, and was not committed", id)
	}
	for _, broken := range r.CheckOrder() {
		w.t.Error(broken)
	}
	w.t.Logf("%d events, %d repeats", len(committed), r.Repeats())
}

// slowest is the longest time from the commit of an event to its acknowledgement.
func (w *world) slowest(executions []string) time.Duration {
	w.t.Helper()
	var longest time.Duration
	for _, text := range w.rows(`SELECT COALESCE(max(published_at - created_at), '0')::text FROM outbox_events
		WHERE aggregate_id = ANY ($1::uuid[])`, executions) {
		at, err := time.Parse("15:04:05.999999", text)
		if err != nil {
			w.t.Fatal(err)
		}
		longest = time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute +
			time.Duration(at.Second())*time.Second + time.Duration(at.Nanosecond())
	}
	return longest
}
