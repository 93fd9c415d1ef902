package history_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/history"
)

// story is a finished run in which everything happens once: a history that keeps all promises.
type story struct {
	History   history.History
	Committed history.Committed
}

// clone is a story to be broken.
func (s story) clone() *story {
	c := &s.Committed
	c.Executions, c.Steps, c.Edges = slices.Clone(c.Executions), slices.Clone(c.Steps), slices.Clone(c.Edges)
	c.Attempts, c.Leases = slices.Clone(c.Attempts), slices.Clone(c.Leases)
	c.Entries, c.Events = slices.Clone(c.Entries), slices.Clone(c.Events)
	s.History.Ops, s.History.Deliveries = slices.Clone(s.History.Ops), slices.Clone(s.History.Deliveries)
	return &s
}

// teller makes a story: one client, one worker, step by step.
type teller struct {
	*world
	ctx    context.Context
	c      *drill.Client
	worker *drill.Worker
}

func tellStory(t *testing.T) story {
	t.Helper()
	w := newWorld(t, 2)
	s := &teller{world: w, ctx: t.Context(), c: w.client("one", 0)}
	s.worker = must[*drill.Worker](t)(s.c.Register(s.ctx, &leaseholdv1.RegisterWorkerRequest{Name: "w", Capabilities: []string{work}, Slots: 10}))
	s.plain()
	s.lost()
	s.canceled()
	s.rounds()
	s.terminated()
	s.revoked()
	s.unclear()
	s.refused()
	conn := w.connect()
	w.settled(conn)
	return story{History: w.recorder.History(), Committed: w.load(conn, "")}
}

func step(name string, parents ...string) *leaseholdv1.StepSpec {
	none := 0.0
	return &leaseholdv1.StepSpec{
		Name: name, Capability: work, DependsOn: parents,
		RetryPolicy: &leaseholdv1.RetryPolicy{InitialInterval: durationpb.New(time.Millisecond), Jitter: &none},
	}
}

// once is a step that is not tried again.
func once(name string, parents ...string) *leaseholdv1.StepSpec {
	s := step(name, parents...)
	s.RetryPolicy.MaximumAttempts = 1
	return s
}

func (s *teller) enqueue(key string, steps ...*leaseholdv1.StepSpec) string {
	s.t.Helper()
	answer := must[*leaseholdv1.EnqueueExecutionResponse](s.t)(s.c.Executions.EnqueueExecution(s.ctx, graph(key, steps...)))
	return answer.GetExecution().GetId()
}

func graph(key string, steps ...*leaseholdv1.StepSpec) *leaseholdv1.EnqueueExecutionRequest {
	return &leaseholdv1.EnqueueExecutionRequest{Name: "story", IdempotencyKey: key, Steps: steps}
}

// take leases the one attempt that is due.
func (s *teller) take(ttl time.Duration) *leaseholdv1.Lease {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < patient; {
		answer := must[*leaseholdv1.LeaseAttemptResponse](s.t)(s.worker.Lease(s.ctx, drill.Poll{Wait: 5 * time.Second, TTL: ttl, Request: uuid.NewString()}))
		if leases := answer.GetLeases(); len(leases) > 0 {
			return leases[0]
		}
	}
	s.t.Fatal("there is nothing to do")
	return nil
}

func (s *teller) report(l *leaseholdv1.Lease, r *leaseholdv1.ReportAttemptRequest) {
	s.t.Helper()
	must[*leaseholdv1.ReportAttemptResponse](s.t)(s.worker.Report(s.ctx, l, r))
}

// tooLate reports, and has to be refused for a reason.
func (s *teller) tooLate(l *leaseholdv1.Lease, reason string) {
	s.t.Helper()
	_, err := s.worker.Report(s.ctx, l, drill.Succeeded(drill.JSON(`"too late"`)))
	if drill.Reason(err) != reason {
		s.t.Fatalf("a late report: %v, want %s", err, reason)
	}
}

func (s *teller) work(l *leaseholdv1.Lease, r *leaseholdv1.ReportAttemptRequest) {
	s.t.Helper()
	stopped := s.recorder.Working("one", l)
	stopped()
	s.report(l, r)
}

func broken() *leaseholdv1.ReportAttemptRequest {
	return drill.Failed(&leaseholdv1.Failure{Type: "BROKEN"})
}

func done() *leaseholdv1.ReportAttemptRequest { return drill.Succeeded(drill.JSON(`"done"`)) }

func (s *teller) renew(l *leaseholdv1.Lease, progress float64, text string) {
	s.t.Helper()
	must[*leaseholdv1.RenewLeaseResponse](s.t)(s.c.Workers.RenewLease(s.ctx, &leaseholdv1.RenewLeaseRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: s.worker.Session, LeaseDuration: durationpb.New(long),
		Progress: &progress, ProgressMessage: text, Checkpoint: drill.JSON(`"` + text + `"`),
	}))
}

// plain: a fails, is handed back, and succeeds; then b does.
func (s *teller) plain() {
	id := s.enqueue("plain", step("a"), step("b", "a"))
	first := s.take(long)
	s.renew(first, 0.25, "a quarter")
	s.renew(first, 0.5, "a half")
	s.report(first, broken())
	s.tooLate(first, "OUTCOME_ALREADY_RECORDED")
	s.tooLate(first, "OUTCOME_ALREADY_RECORDED")
	s.work(s.take(long), drill.Released("not now", 0))
	third := s.take(long)
	s.renew(third, 0.75, "three quarters")
	s.work(third, done())
	s.report(third, done())
	s.work(s.take(long), done())
	must[*leaseholdv1.Execution](s.t)(s.c.Get(s.ctx, id))
	must[*leaseholdv1.EnqueueExecutionResponse](s.t)(s.c.Executions.EnqueueExecution(s.ctx, graph("plain", step("a"), step("b", "a"))))
	must[*leaseholdv1.GetExecutionResponse](s.t)(s.c.Executions.GetExecution(s.ctx, &leaseholdv1.GetExecutionRequest{IdempotencyKey: "plain"}))
}

// lost: a lease runs out, the next attempt succeeds.
func (s *teller) lost() {
	s.enqueue("lost", step("a"))
	first := s.take(time.Second)
	second := s.take(long)
	s.tooLate(first, "LEASE_SUPERSEDED")
	s.work(second, done())
}

func (s *teller) canceled() {
	id := s.enqueue("canceled", step("a"), step("b", "a"))
	l := s.take(long)
	cancel := &leaseholdv1.CancelExecutionRequest{ExecutionId: id}
	must[*leaseholdv1.CancelExecutionResponse](s.t)(s.c.Executions.CancelExecution(s.ctx, cancel))
	s.report(l, drill.Canceled())
	must[*leaseholdv1.CancelExecutionResponse](s.t)(s.c.Executions.CancelExecution(s.ctx, cancel))
}

// rounds: the first fails, the second succeeds.
func (s *teller) rounds() {
	id := s.enqueue("rounds", once("a"), once("b", "a"))
	s.report(s.take(long), broken())
	must[*leaseholdv1.Execution](s.t)(s.c.Get(s.ctx, id))
	retry := &leaseholdv1.RetryExecutionRequest{ExecutionId: id, RequestId: "again"}
	for range 2 {
		must[*leaseholdv1.RetryExecutionResponse](s.t)(s.c.Executions.RetryExecution(s.ctx, retry))
	}
	s.work(s.take(long), done())
	s.work(s.take(long), done())
	must[*leaseholdv1.Execution](s.t)(s.c.Get(s.ctx, id))
}

func (s *teller) terminated() {
	id := s.enqueue("terminated", step("a"))
	l := s.take(long)
	must[*leaseholdv1.TerminateExecutionResponse](s.t)(s.c.Operators.TerminateExecution(s.ctx, &leaseholdv1.TerminateExecutionRequest{ExecutionId: id}))
	s.tooLate(l, "LEASE_REVOKED")
}

func (s *teller) revoked() {
	s.enqueue("revoked", step("a"))
	l := s.take(long)
	must[*leaseholdv1.RevokeLeaseResponse](s.t)(s.c.Operators.RevokeLease(s.ctx, &leaseholdv1.RevokeLeaseRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(),
	}))
	s.report(s.take(long), done())
}

// unclear: an enqueue is done though its answer is lost, so is a grant; of two reports whose
// answers are lost one was done.
func (s *teller) unclear() {
	enqueue := graph("unclear", step("a"), step("b"))
	s.lose = loser{leaseholdv1.ExecutionService_EnqueueExecution_FullMethodName, "answer"}
	if _, err := s.c.Executions.EnqueueExecution(s.ctx, enqueue); err == nil {
		s.t.Fatal("the answer was not lost")
	}
	must[*leaseholdv1.EnqueueExecutionResponse](s.t)(s.c.Executions.EnqueueExecution(s.ctx, enqueue))
	poll := drill.Poll{Wait: 5 * time.Second, TTL: long, Request: "unclear"}
	s.lose = loser{leaseholdv1.WorkerService_LeaseAttempt_FullMethodName, "answer"}
	if _, err := s.worker.Lease(s.ctx, poll); err == nil {
		s.t.Fatal("the answer was not lost")
	}
	l := must[*leaseholdv1.LeaseAttemptResponse](s.t)(s.worker.Lease(s.ctx, poll)).GetLeases()
	if len(l) != 1 {
		s.t.Fatalf("the grants were repeated as %v", l)
	}
	for _, when := range []string{"request", "answer"} {
		s.lose = loser{leaseholdv1.WorkerService_ReportAttempt_FullMethodName, when}
		if _, err := s.worker.Report(s.ctx, l[0], done()); err == nil {
			s.t.Fatal("the answer was not lost")
		}
	}
	s.report(s.take(long), done())
}

// refused: what is not done.
func (s *teller) refused() {
	expect := func(err error, reason string) {
		s.t.Helper()
		if drill.Reason(err) != reason {
			s.t.Fatalf("got %v, want %s", err, reason)
		}
	}
	_, err := s.c.Executions.EnqueueExecution(s.ctx, graph("plain", step("other")))
	expect(err, "IDEMPOTENCY_KEY_REUSED")
	_, err = s.c.Executions.EnqueueExecution(s.ctx, graph("bad", step("a", "a")))
	if err == nil {
		s.t.Fatal("a step that is its own parent was accepted")
	}
	id := s.enqueue("refused", step("a"))
	l := s.take(long)
	s.report(l, done())
	_, err = s.c.Executions.CancelExecution(s.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id})
	expect(err, "EXECUTION_CLOSED")
	_, err = s.c.Executions.RetryExecution(s.ctx, &leaseholdv1.RetryExecutionRequest{ExecutionId: id})
	expect(err, "EXECUTION_NOT_RETRYABLE")
	progress := 0.9
	_, err = s.c.Workers.RenewLease(s.ctx, &leaseholdv1.RenewLeaseRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: s.worker.Session, Progress: &progress,
	})
	expect(err, "OUTCOME_ALREADY_RECORDED")
}

// TestStory tells one story, and looks at it in several ways.
func TestStory(t *testing.T) {
	t.Parallel()
	s := tellStory(t)
	t.Run("Check_KeepsIt", s.isKept)
	t.Run("Check_RejectsEachRule", s.isRejectedWhenBroken)
	t.Run("History_AsLines", s.survivesAsLines)
}

// isKept: what the service does is no violation, as a whole and cut off anywhere.
func (s story) isKept(t *testing.T) {
	none(t, "finished", history.CheckFinished(s.History, s.Committed))
	none(t, "as it is", history.Check(s.History, s.Committed))
	if len(s.History.Ops) < 60 || len(s.History.Deliveries) < len(s.Committed.Events) || len(s.Committed.Events) < 70 {
		t.Errorf("%d ops, %d deliveries, %d events: too little was recorded", len(s.History.Ops), len(s.History.Deliveries), len(s.Committed.Events))
	}
	for _, o := range s.History.Ops { // fewer answers than there were: less is known, but nothing is wrong
		none(t, "as known then", history.Check(s.History.Until(o.Begin), s.Committed))
	}
}

// survivesAsLines: a real history can be written and read again.
func (s story) survivesAsLines(t *testing.T) {
	var text bytes.Buffer
	if err := s.History.Write(&text); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.History, must[history.History](t)(history.Read(&text))); diff != "" {
		t.Error(diff)
	}
}
