package drill

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/testsink"
)

// poison is a sink that does not take some events, and what then becomes of them.
type poison struct {
	sink     func(t *testing.T) *poisonedSink
	attempts int32  // of each such event
	reason   string // that is kept
}

// poisonedSink is such a sink, until it is healed.
type poisonedSink struct {
	publisher func() (outbox.Publisher, error)
	arrived   *testsink.Record
	heal      func()
}

// badName is that of executions whose failures a webhook does not take.
const badName = "poison"

// refusing is a webhook that answers the failures of such executions with a status.
func refusing(status int) func(*testing.T) *poisonedSink {
	return func(t *testing.T) *poisonedSink {
		var healed atomic.Bool
		r := testsink.StartReceiver(t, func(w http.ResponseWriter, _ *http.Request, d *testsink.Delivery) {
			if d.Type == "leasehold.attempt.v1.failed" && strings.Contains(string(d.Data), `"`+badName+`"`) && !healed.Load() {
				w.WriteHeader(status)
			}
		})
		return &poisonedSink{publisher: toReceiver(r), arrived: r.Record, heal: func() { healed.Store(true) }}
	}
}

// tooLarge is a NATS server that takes no message as large as such a failure.
func tooLarge(t *testing.T) *poisonedSink {
	n := testsink.StartNATS(t, func(o *server.Options) { o.MaxPayload = 4 << 10 })
	n.PutStream(testsink.Subjects)
	s := &poisonedSink{publisher: toNATS(t, n), arrived: &testsink.Record{}}
	s.heal = func() { n.Restart(func(o *server.Options) { o.MaxPayload = 1 << 20 }) }
	n.Follow(s.arrived)
	return s
}

// TestB77_PoisonEventsDoNotDelayOthers: the events that the sink does not take are parked with
// their reason, at once or after some tries; those behind them wait; those of a thousand other
// executions arrive with no more than the usual delay. Operators see the bad ones, and redrive
// them when the sink takes them. Broken once: heads of dead events that
// stay due (the others then wait for ever), and a relay that waits out the backoff of one
// event before it goes on.
func TestB77_PoisonEventsDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]poison{
		"over max_payload of NATS": {sink: tooLarge, attempts: 1, reason: "%refused for good: nats: maximum payload exceeded"},
		"webhook answers 400":      {sink: refusing(http.StatusBadRequest), attempts: 1, reason: "refused for good: %answered 400 Bad Request%"},
		"webhook answers 500":      {sink: refusing(http.StatusInternalServerError), attempts: 3, reason: "%answered 500 Internal Server Error%"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := p.sink(t)
			w := newPublishing(t, 1, sink.publisher, outbox.Config{MaximumAttempts: 3}) // one relay, of fewer places than bad ones
			h := w.worker(0, 50)
			usual := w.slowestOf(h, count(t, 30, 1000))
			bad := w.poisoned(h, count(t, 70, 150))
			slowest := w.slowestOf(h, count(t, 100, 1000))
			t.Logf("slowest of the good events: %s, before the bad ones %s", slowest, usual)
			if most := 3*usual + 5*time.Second; slowest > most {
				t.Errorf("a good event took %s, more than %s", slowest, most)
			}
			w.parked(bad, p)
			w.awaitPublished(patient, bad...)
			w.sameEvents(sink.arrived, bad...)
			sink.heal()
			w.redriven(len(bad))
			w.sameEvents(sink.arrived)
		})
	}
}

// slowestOf has n executions done, waits for their events, and tells how long one took at most.
func (w *world) slowestOf(h *hand, n int) time.Duration {
	w.t.Helper()
	ids := w.run(h, n)
	err := Await(w.ctx, patient, "events of good executions", func(context.Context) (bool, error) {
		return len(w.rows(`SELECT id::text FROM outbox_events WHERE aggregate_id = ANY ($1::uuid[]) AND status <> 'PUBLISHED' LIMIT 1`, ids)) == 0, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.slowest(ids)
}

// poisoned has n executions fail, with words that no sink takes.
func (w *world) poisoned(h *hand, n int) []string {
	w.t.Helper()
	ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest {
		e := graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(1, time.Second)})
		e.Name = badName
		return e
	})
	for done := 0; done < n; {
		leases := h.take(min(n-done, 50), long)
		each(leases, func(i int, l *leaseholdv1.Lease) {
			h.at(i).report(l, Failed(&leaseholdv1.Failure{Type: "LARGE", Message: strings.Repeat("long ", 1200)}))
		})
		done += len(leases)
	}
	return ids
}

// redriven has an operator see the dead events and redrive them, and waits until all events
// have arrived.
func (w *world) redriven(n int) {
	w.t.Helper()
	operators, dead := w.Client(0).Operators, leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD
	list, err := operators.ListOutboxEvents(w.ctx, &leaseholdv1.ListOutboxEventsRequest{
		Statuses: []leaseholdv1.OutboxEventStatus{dead}, PageSize: 1000,
	})
	if err != nil || len(list.GetEvents()) != n || list.GetEvents()[0].GetLastError() == "" {
		w.t.Fatalf("operators see %d dead events (%v), want %d with their reasons", len(list.GetEvents()), err, n)
	}
	answer, err := operators.RedriveOutboxEvents(w.ctx, &leaseholdv1.RedriveOutboxEventsRequest{Status: dead, Reason: "healed"})
	if err != nil || int(answer.GetCount()) != n {
		w.t.Fatalf("redrive: %v, %v", answer, err)
	}
	w.awaitPublished(patient)
}

// parked waits until the poison events of executions are dead, and looks what became of them
// and of those behind them.
func (w *world) parked(bad []string, p poison) {
	w.t.Helper()
	err := Await(w.ctx, patient, "dead events", func(context.Context) (bool, error) {
		return len(w.rows(`SELECT id::text FROM outbox_events WHERE aggregate_id = ANY ($1::uuid[]) AND status = 'DEAD'`, bad)) == len(bad), nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, wrong := range w.rows(`SELECT format('%s %s: %s after %s tries: %s', event_type, sequence, status, attempts, last_error) FROM outbox_events
		WHERE aggregate_id = ANY ($1::uuid[]) AND NOT CASE event_type
			WHEN 'leasehold.attempt.v1.failed' THEN status = 'DEAD' AND attempts = $2 AND last_error LIKE $3
			WHEN 'leasehold.step.v1.failed' THEN status = 'PENDING' AND attempts = 0
			WHEN 'leasehold.execution.v1.failed' THEN status = 'PENDING' AND attempts = 0
			ELSE status = 'PUBLISHED' END LIMIT 5`, bad, p.attempts, p.reason) {
		w.t.Error(wrong)
	}
}

// stumbling publishes the first event of each execution, and then says once that it failed:
// the acknowledgement was lost.
type stumbling struct {
	outbox.Publisher
	fallen *sync.Map
}

// Publish publishes, and stumbles.
func (s stumbling) Publish(ctx context.Context, e *outbox.Event) error {
	err := s.Publisher.Publish(ctx, e)
	if _, again := s.fallen.LoadOrStore(e.ID, true); err == nil && e.Sequence == 1 && !again {
		return errors.New("the acknowledgement was lost")
	}
	return err
}

// TestB78_OrderThroughRealSinks: the first try of the first event of each of 100 executions
// fails. Two relays; the second event waits for the first, and each carries its number. Broken
// once: a run that goes on behind a failure.
func TestB78_OrderThroughRealSinks(t *testing.T) {
	t.Parallel()
	first := func(w http.ResponseWriter, _ *http.Request, d *testsink.Delivery) {
		if d.Number() == 1 && d.Before == 0 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
	t.Run("webhook", func(t *testing.T) {
		t.Parallel()
		r := testsink.StartReceiver(t, first)
		inOrder(t, toReceiver(r), r.Record)
		if n := r.Repeats(); n < 100 {
			t.Errorf("%d repeats, want one of each execution", n)
		}
	})
	t.Run("NATS", func(t *testing.T) {
		t.Parallel()
		n := testsink.StartNATS(t)
		n.PutStream(testsink.Subjects)
		arrived := &testsink.Record{}
		n.Follow(arrived)
		fallen := &sync.Map{}
		inOrder(t, func() (outbox.Publisher, error) {
			p, err := toNATS(t, n)()
			return stumbling{p, fallen}, err
		}, arrived)
		if n := arrived.Repeats(); n > 0 {
			t.Errorf("%d repeats in the stream, which knows the events by their ids", n)
		}
	})
}

// inOrder has executions done, and only then starts two replicas that publish: each execution
// has many events by then, and may get more.
func inOrder(t *testing.T, sink func() (outbox.Publisher, error), arrived *testsink.Record) {
	t.Helper()
	w := newPair(t)
	h := w.worker(0, 50)
	w.run(h, 50)
	w.config.Publisher = sink
	for range 2 {
		if _, err := w.Add(w.ctx); err != nil {
			t.Fatal(err)
		}
	}
	w.run(h, 50)
	w.awaitPublished(patient)
	w.sameEvents(arrived)
	if n := w.rows(`SELECT id::text FROM outbox_events WHERE sequence = 1 AND attempts <> 2`); len(n) > 0 {
		t.Errorf("%d first events do not tell of two tries", len(n))
	}
}

// outage is a sink that goes away and comes back.
type outage struct {
	publisher   func() (outbox.Publisher, error)
	arrived     *testsink.Record
	begin, over func()
	// strict: an event is noted before its acknowledgement is sent, so what is PUBLISHED has
	// been noted, at any time.
	strict bool
}

// TestB79_SentOnlyAfterAck: the sink goes away for a minute under load, in three ways. Nothing
// is marked as sent meanwhile, and after it is back all arrives, in order; what comes twice
// has the same id. Broken once: natspub without the wait for the acknowledgement, and a
// webhook that takes a broken connection for delivered.
func TestB79_SentOnlyAfterAck(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testing.T) *outage{
		"NATS is stopped": stoppedNATS, "the stream is removed": removedStream, "the webhook hangs up": hangingUp,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := prepare(t)
			w := newPublishing(t, 3, o.publisher, outbox.Config{})
			h := w.worker(0, 20)
			w.run(h, 20)
			w.underLoad(h, o, time.Second)
			o.begin()
			w.underLoad(h, o, time.Duration(count(t, 4, 60))*time.Second)
			before := len(w.rows(`SELECT id::text FROM outbox_events WHERE status <> 'PUBLISHED'`))
			if before == 0 {
				t.Error("no event waits: is the sink away?")
			}
			o.over()
			began := time.Now()
			w.underLoad(h, o, time.Second)
			w.awaitPublished(2 * patient) // the backoff is more than a minute by then
			t.Logf("%d events waited, and were sent within %s", before, time.Since(began).Round(time.Millisecond))
			w.sameEvents(o.arrived)
			w.sameFacts(o.arrived)
		})
	}
}

// underLoad has executions done for a while.
func (w *world) underLoad(h *hand, o *outage, d time.Duration) {
	w.t.Helper()
	for began := time.Now(); time.Since(began) < d; {
		w.run(h, 5)
		time.Sleep(20 * time.Millisecond)
		if !o.strict {
			continue
		}
		sent := w.rows(`SELECT id::text FROM outbox_events WHERE status = 'PUBLISHED'`)
		taken := o.arrived.IDs()
		for _, id := range sent {
			if !taken[id] {
				w.t.Fatalf("event %s is marked as sent, and was not acknowledged", id)
			}
		}
	}
}

// sameFacts fails the test unless an event's repeats are the same event.
func (w *world) sameFacts(r *testsink.Record) {
	w.t.Helper()
	first := map[string]string{}
	for _, d := range r.Deliveries() {
		place := d.Execution + " " + d.Sequence
		if id, known := first[place]; known && id != d.ID {
			w.t.Errorf("event %s came as %s and as %s", place, id, d.ID)
		}
		first[place] = d.ID
		if _, err := uuid.Parse(d.ID); err != nil {
			w.t.Errorf("event %s has the id %q", place, d.ID)
		}
	}
}

func stoppedNATS(t *testing.T) *outage {
	n := testsink.StartNATS(t)
	n.PutStream(testsink.Subjects)
	o := &outage{publisher: toNATS(t, n), arrived: &testsink.Record{}, begin: n.Stop, over: n.Start}
	n.Follow(o.arrived)
	return o
}

// removedStream first has the stream take no more events, so that it is known what it had
// acknowledged before it is deleted.
func removedStream(t *testing.T) *outage {
	n := testsink.StartNATS(t)
	n.PutStream(testsink.Subjects)
	o := &outage{publisher: toNATS(t, n), arrived: &testsink.Record{}}
	n.Follow(o.arrived)
	o.begin = func() {
		n.PutStream("elsewhere.>")
		err := Await(t.Context(), patient, "all messages read", func(context.Context) (bool, error) {
			return len(o.arrived.IDs()) == n.Messages(), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		n.DeleteStream()
	}
	o.over = func() {
		n.PutStream(testsink.Subjects)
		n.Follow(o.arrived)
	}
	return o
}

func hangingUp(t *testing.T) *outage {
	var away atomic.Bool
	r := testsink.StartReceiver(t, func(http.ResponseWriter, *http.Request, *testsink.Delivery) {
		if away.Load() {
			testsink.HangUp()
		}
	})
	return &outage{
		publisher: toReceiver(r), arrived: r.Record, strict: true,
		begin: func() { away.Store(true) }, over: func() { away.Store(false) },
	}
}

// TestB85_RelaysOfThreeReplicasDoNotRepeat: each event is published by one of them, while
// nothing fails. Broken once: heads that are claimed without a look at another's claim.
func TestB85_RelaysOfThreeReplicasDoNotRepeat(t *testing.T) {
	t.Parallel()
	n := testsink.StartNATS(t)
	n.PutStream(testsink.Subjects)
	published := &testsink.Record{}
	n.Tap(published)
	w := newPublishing(t, 3, toNATS(t, n), outbox.Config{})
	executions := count(t, 150, 840)
	w.run(w.worker(0, 100), executions)
	w.awaitPublished(patient)
	w.sameEvents(published)
	w.sameFacts(published)
	if repeats, events := published.Repeats(), len(published.IDs()); repeats*100 >= events {
		t.Errorf("%d repeats of %d events, want less than one of a hundred", repeats, events)
	}
}
