package drill

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/task"
)

// TestB112_PauseCoversRetriesAndDelays: while it lasts nothing new is leased, whatever comes due;
// what runs may finish; afterwards all run in their order, none is lost. A backlog that is paused
// keeps no dispatcher busy. Caught: a pause that neither claim nor dispatch looks at.
func TestB112_PauseCoversRetriesAndDelays(t *testing.T) {
	t.Parallel()
	var transactions txCounter
	w := newWorld(t, func(c *Config) { c.Observer = &transactions })
	h := w.worker(0, 20)
	retried := step("retried")
	retried.RetryPolicy = retries(3, 1500*time.Millisecond)
	delayed := step("delayed")
	delayed.StartDelay = durationpb.New(2 * time.Second)
	id := w.enqueue(graph(step("running"), retried, delayed))
	held := byStep(h.take(2, long))
	h.fail(held["retried"])
	paused := w.pause(1, "work", "the mail server is down")
	want(t, "paused", paused.GetPaused(), true)
	want(t, "running", paused.GetRunning(), 1)
	var ready []string
	for i := range 5 {
		e := graph(step("ready" + strconv.Itoa(i)))
		e.Priority = int32(i)
		ready = append(ready, w.enqueue(e)) // enqueueing goes on
	}
	before := transactions.Load()
	began := time.Now()
	var polls sync.WaitGroup
	for r := range 3 {
		polls.Go(func() { h.at(r).nothing(3 * time.Second) }) // what is delayed comes due meanwhile
	}
	polls.Wait()
	if n, most := transactions.Load()-before, int64(time.Since(began).Seconds()*150); n > most {
		t.Errorf("%d transactions while all was paused, want at most %d", n, most)
	}
	h.succeed(held["running"])
	now := w.capability("work")
	want(t, "ready", now.GetReady(), 7)
	want(t, "delayed", now.GetDelayed(), 0)
	want(t, "reason", now.GetPauseReason(), "the mail server is down")
	want(t, "since", now.GetPauseTime().AsTime(), paused.GetPauseTime().AsTime())
	want(t, "resumed", w.resume(2, "work").GetPaused(), false)
	var order []string
	for range 7 {
		l := h.one(long)
		order = append(order, l.GetStepName())
		h.succeed(l)
	}
	want(t, "order", fmt.Sprint(order[:4]), "[ready4 ready3 ready2 ready1]")
	slices.Sort(order[4:]) // of the same priority; the first due comes first, and dues were close
	want(t, "the others", fmt.Sprint(order[4:]), "[delayed ready0 retried]")
	for _, e := range append(ready, id) {
		w.awaitState(e, succeeded)
	}
}

// txCounter counts the transactions of all replicas.
type txCounter struct{ atomic.Int64 }

func (n *txCounter) Transaction(string, time.Duration, time.Duration, string) { n.Add(1) }
func (n *txCounter) AttemptEnded(task.AttemptState, bool)                     {}
func (n *txCounter) ExecutionEnded(task.ExecutionState)                       {}
func (n *txCounter) HintsHeard()                                              {}

// leasedAfter counts attempts of a capability now and after a while of further polling: between
// the two nothing may be added.
func (w *world) nothingMore(what, where string, args ...any) {
	w.t.Helper()
	count := func() string {
		return w.rows(`SELECT count(*)::text FROM attempts a JOIN steps s ON s.id = a.step_id JOIN capabilities c ON c.id = s.capability_id
			JOIN workers w ON w.id = a.worker_id WHERE `+where, args...)[0]
	}
	now := count()
	time.Sleep(300 * time.Millisecond) // for whatever was under way
	want(w.t, what+": attempts that were leased", count(), now)
}

// busy keeps workers taking work and finishing it, through all replicas, until stop is called.
func (w *world) busy(hands []*hand) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i, h := range hands {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				h.at(i).succeedAll(h.at(i).poll(Poll{Max: 5, Wait: 50 * time.Millisecond, TTL: long}).GetLeases())
			}
		})
	}
	return sync.OnceFunc(func() { close(done); wg.Wait() })
}

// After the OK of a pause no later commit leases the capability, however busy the dispatchers of
// all replicas are with it. Caught: a pause that does not wait for the dispatches under way.
func TestPause_AfterItsOKNothingIsLeased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var hands []*hand
	for i := range 6 {
		hands = append(hands, w.worker(i, 5))
	}
	defer w.busy(hands)()
	for round := range count(t, 6, 100) {
		w.enqueueMany(60, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a"), step("b")) })
		w.pause(round, "work", "")
		w.nothingMore("paused", "c.name = 'work'")
		w.resume(round+1, "work")
	}
}

// Pausing twice and resuming twice change nothing; one ahead of the first step holds, in its own
// namespace only.
func TestPause_IsIdempotentAndHoldsAheadOfADeploy(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	first := w.pause(0, "mail/v9", "not yet")
	again := w.pause(1, "mail/v9", "another reason")
	want(t, "reason", again.GetPauseReason(), "not yet")
	want(t, "since", again.GetPauseTime().AsTime(), first.GetPauseTime().AsTime())
	spec := &leaseholdv1.StepSpec{Name: "a", Capability: "mail/v9"}
	id := w.enqueue(graph(spec))
	other := graph(spec)
	other.Namespace = "elsewhere"
	free := w.enqueue(other)
	h := w.register(0, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"mail/v9"}, Slots: 2})
	h.nothing(300 * time.Millisecond)
	there := w.register(1, &leaseholdv1.RegisterWorkerRequest{Namespace: "elsewhere", Capabilities: []string{"mail/v9"}})
	l := there.one(long)
	want(t, "of the other namespace", l.GetExecutionId(), free)
	there.succeed(l)
	w.resume(0, "mail/v9")
	want(t, "resumed", w.resume(1, "mail/v9").GetPaused(), false)
	l = h.one(long)
	want(t, "execution", l.GetExecutionId(), id)
	h.succeed(l)

	_, err := w.Client(0).Operators.ResumeCapability(w.ctx, &leaseholdv1.ResumeCapabilityRequest{Capability: "nobody/has-this"})
	refused(t, err, codes.NotFound, "CAPABILITY_NOT_FOUND")
	_, err = w.Client(0).Operators.PauseCapability(w.ctx, &leaseholdv1.PauseCapabilityRequest{Capability: "a b"})
	refused(t, err, codes.InvalidArgument, "INVALID_FIELD")
	_, err = w.Client(0).Operators.PauseCapability(w.ctx, &leaseholdv1.PauseCapabilityRequest{Capability: "work", Reason: fmt.Sprintf("%1025d", 1)})
	refused(t, err, codes.InvalidArgument, "INVALID_FIELD")
	want(t, "what was refused", len(w.rows(`SELECT name FROM capabilities WHERE paused`)), 0)
}
