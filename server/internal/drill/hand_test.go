package drill

import (
	"context"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// long is a lease duration that does not end within a test.
const long = 10 * time.Minute

// hand is a worker under test.
type hand struct {
	*Worker
	w *world
}

// worker registers a worker for the capability "work" at a replica.
func (w *world) worker(replica int, slots int32) *hand {
	w.t.Helper()
	return w.register(replica, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"work"}, Slots: slots})
}

func (w *world) register(replica int, r *leaseholdv1.RegisterWorkerRequest) *hand {
	w.t.Helper()
	worker, err := w.Client(replica).Register(w.ctx, r)
	if err != nil {
		w.t.Fatalf("register: %v", err)
	}
	return &hand{worker, w}
}

// at is the same session through another replica.
func (h *hand) at(replica int) *hand { return &hand{h.Via(h.w.Client(replica)), h.w} }

// poll polls once; an error fails the test. Like what follows but for take, it may be called
// from any goroutine.
func (h *hand) poll(p Poll) *leaseholdv1.LeaseAttemptResponse {
	h.w.t.Helper()
	ctx, cancel := context.WithTimeout(h.w.ctx, p.Wait+patient)
	defer cancel()
	answer, err := h.Lease(ctx, p)
	if err != nil {
		h.w.t.Errorf("lease: %v", err)
	}
	return answer
}

// take polls until it has n leases.
func (h *hand) take(n int, ttl time.Duration) []*leaseholdv1.Lease {
	h.w.t.Helper()
	var list []*leaseholdv1.Lease
	began := time.Now()
	for len(list) < n {
		if time.Since(began) > patient {
			h.w.t.Fatalf("got %d leases of %d within %s", len(list), n, patient)
		}
		answer, err := h.Lease(h.w.ctx, Poll{Max: min(n-len(list), 1000), Wait: 5 * time.Second, TTL: ttl})
		if err != nil {
			h.w.t.Fatalf("lease: %v", err)
		}
		list = append(list, answer.GetLeases()...)
	}
	return list
}

// within is take, but gives up when the time is over.
func (h *hand) within(n int, limit time.Duration) ([]*leaseholdv1.Lease, bool) {
	h.w.t.Helper()
	var list []*leaseholdv1.Lease
	for began := time.Now(); len(list) < n; {
		left := limit - time.Since(began)
		if left <= 0 {
			return nil, false
		}
		list = append(list, h.poll(Poll{Max: n - len(list), Wait: left, TTL: long}).GetLeases()...)
	}
	return list, true
}

// one polls until it has one lease.
func (h *hand) one(ttl time.Duration) *leaseholdv1.Lease {
	h.w.t.Helper()
	return h.take(1, ttl)[0]
}

// nothing polls for a while, and fails the test if it gets anything.
func (h *hand) nothing(d time.Duration) {
	h.w.t.Helper()
	if got := h.poll(Poll{Max: 10, Wait: d, TTL: long}).GetLeases(); len(got) > 0 {
		h.w.t.Errorf("leased %s attempt %d, should have got nothing", got[0].GetStepName(), got[0].GetAttemptNumber())
	}
}

// report reports; an error fails the test.
func (h *hand) report(l *leaseholdv1.Lease, r *leaseholdv1.ReportAttemptRequest) *leaseholdv1.ReportAttemptResponse {
	h.w.t.Helper()
	answer, err := h.Report(h.w.ctx, l, r)
	if err != nil {
		h.w.t.Errorf("report %s attempt %d: %v", l.GetStepName(), l.GetAttemptNumber(), err)
	}
	return answer
}

func (h *hand) succeed(l *leaseholdv1.Lease) *leaseholdv1.ReportAttemptResponse {
	h.w.t.Helper()
	return h.report(l, Succeeded(JSON(`"done"`)))
}

// broken is the failure of an attempt that may be tried again.
func broken() *leaseholdv1.ReportAttemptRequest {
	return Failed(&leaseholdv1.Failure{Type: "BROKEN", Message: "it broke"})
}

func (h *hand) fail(l *leaseholdv1.Lease) *leaseholdv1.ReportAttemptResponse {
	h.w.t.Helper()
	return h.report(l, broken())
}

// renew renews for a long time; an error fails the test.
func (h *hand) renew(l *leaseholdv1.Lease) *leaseholdv1.RenewLeaseResponse {
	h.w.t.Helper()
	answer, err := h.Renew(h.w.ctx, l, long)
	if err != nil {
		h.w.t.Errorf("renew %s: %v", l.GetStepName(), err)
	}
	return answer
}

// succeedAll reports successes, several at a time, through all replicas.
func (h *hand) succeedAll(leases []*leaseholdv1.Lease) {
	h.w.t.Helper()
	each(leases, func(i int, l *leaseholdv1.Lease) { h.at(i).succeed(l) })
}

// finish takes n steps and ends them, no more at a time than there are slots.
func (h *hand) finish(n int) {
	h.w.t.Helper()
	for began := time.Now(); n > 0; {
		if time.Since(began) > patient {
			h.w.t.Fatalf("%d steps were left after %s", n, patient)
		}
		leases := h.poll(Poll{Max: n, Wait: 5 * time.Second, TTL: long}).GetLeases()
		h.succeedAll(leases)
		n -= len(leases)
	}
}

// byStep finds leases by the names of their steps.
func byStep(leases []*leaseholdv1.Lease) map[string]*leaseholdv1.Lease {
	m := make(map[string]*leaseholdv1.Lease, len(leases))
	for _, l := range leases {
		m[l.GetStepName()] = l
	}
	return m
}

// byExecution groups leases by their executions.
func byExecution(leases []*leaseholdv1.Lease) map[string][]*leaseholdv1.Lease {
	m := map[string][]*leaseholdv1.Lease{}
	for _, l := range leases {
		m[l.GetExecutionId()] = append(m[l.GetExecutionId()], l)
	}
	return m
}
