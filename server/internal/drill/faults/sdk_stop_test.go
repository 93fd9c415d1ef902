package faults

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// order enqueues one step for the SDK's workers, of so many tries, and returns its execution.
func order(t *testing.T, p *peer, capability string, tries int32, in sleepInput) string {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := p.executions.EnqueueExecution(t.Context(), &leaseholdv1.EnqueueExecutionRequest{
		Name: "for the SDK", IdempotencyKey: uuid.NewString(),
		Steps: []*leaseholdv1.StepSpec{{
			Name: "only", Capability: capability,
			Input:       &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(text)}},
			RetryPolicy: &leaseholdv1.RetryPolicy{MaximumAttempts: tries},
		}},
	})
	if err != nil {
		t.Fatalf("enqueue: %v", err)
	}
	return answer.GetExecution().GetId()
}

// only is the one step of an execution.
func only(t *testing.T, p *peer, execution string) *leaseholdv1.Step {
	t.Helper()
	answer, err := p.executions.GetExecution(t.Context(), &leaseholdv1.GetExecutionRequest{ExecutionId: execution})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetExecution().GetSteps()[0]
}

// attemptStates are those of all attempts of a step.
func attemptStates(s *leaseholdv1.Step) []leaseholdv1.AttemptState {
	var list []leaseholdv1.AttemptState
	for _, a := range s.GetAttempts() {
		list = append(list, a.GetState())
	}
	return list
}

// TestB21_SIGTERMToAWorkerOfTheSDK: a process with three attempts, of 2 s, of 60 s and one that
// fails at 3 s, is told to stop, with a grace of 10 s. It takes no more work, reports what ends
// in time, hands back the rest, which does not count, and is gone.
func TestB21_SIGTERMToAWorkerOfTheSDK(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{replicas: 2})
	p := dial(t, c.replicas[0].addr)
	short, long := order(t, p, "b21", 1, sleepInput{For: 2 * time.Second}), order(t, p, "b21", 1, sleepInput{For: time.Minute})
	fails := order(t, p, "b21", 1, sleepInput{For: 3 * time.Second, Fails: true})
	w := startWorkers(t, workersJob{Addrs: c.addresses(), Capability: "b21", Workers: 1, Slots: 4, Lease: 5 * time.Second, Grace: 10 * time.Second})
	eventually(t, 20*time.Second, "three attempts under way", func() bool { return w.look().Busy == 3 })

	began := time.Now()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	late := time.Second // a poll that is under way hears of it
	time.Sleep(late)
	never := order(t, p, "b21", 1, sleepInput{})
	select {
	case <-w.exited:
	case <-time.After(30 * time.Second):
		t.Fatal("the worker does not end")
	}
	took := time.Since(began)
	t.Logf("gone after %s, %v", took, w.status)
	if took < 10*time.Second || took > 11*time.Second+slack() || !w.status.Success() {
		t.Errorf("gone after %s, %v; want success within 11 s, and not before the grace is over", took, w.status)
	}
	for _, tc := range []struct {
		what, execution string
		step            leaseholdv1.StepState
		attempts        []leaseholdv1.AttemptState
		counted         int32
	}{
		{"of 2 s", short, leaseholdv1.StepState_STEP_STATE_SUCCEEDED, []leaseholdv1.AttemptState{leaseholdv1.AttemptState_ATTEMPT_STATE_SUCCEEDED}, 1},
		{"that fails", fails, leaseholdv1.StepState_STEP_STATE_FAILED, []leaseholdv1.AttemptState{leaseholdv1.AttemptState_ATTEMPT_STATE_FAILED}, 1},
		{"of 60 s", long, leaseholdv1.StepState_STEP_STATE_READY, []leaseholdv1.AttemptState{leaseholdv1.AttemptState_ATTEMPT_STATE_RELEASED}, 0},
		{"that came later", never, leaseholdv1.StepState_STEP_STATE_READY, nil, 0},
	} {
		s := only(t, p, tc.execution)
		got := attemptStates(s)
		if s.GetState() != tc.step || s.GetCountedAttempts() != tc.counted || len(got) != len(tc.attempts) || len(got) > 0 && got[0] != tc.attempts[0] {
			t.Errorf("the step %s: %v, attempts %v, %d counted; want %v, %v, %d", tc.what, s.GetState(), got, s.GetCountedAttempts(), tc.step, tc.attempts, tc.counted)
		}
	}
	for _, l := range newHand(t, p, 2, "b21").take(p, 2, time.Minute) { // leasable at once
		if l.GetExecutionId() == long && (l.GetAttemptNumber() != 2 || l.GetCheckpoint().GetJson() != `"half way"`) {
			t.Errorf("the next attempt: number %d, checkpoint %v", l.GetAttemptNumber(), l.GetCheckpoint())
		}
	}
}

// TestB21_SIGKILLToAWorkerOfTheSDK: somebody else has its work within the lease and two sweeps.
func TestB21_SIGKILLToAWorkerOfTheSDK(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{replicas: 2})
	p := dial(t, c.replicas[0].addr)
	ttl := sized(2*time.Second, 5*time.Second)
	order(t, p, "b21.kill", 2, sleepInput{For: time.Minute})
	w := startWorkers(t, workersJob{Addrs: c.addresses(), Capability: "b21.kill", Workers: 1, Slots: 4, Lease: ttl})
	eventually(t, 20*time.Second, "an attempt under way", func() bool { return w.look().Busy == 1 })
	other := newHand(t, p, 1, "b21.kill").park(p, 50*time.Second, ttl)
	time.Sleep(ttl * 3 / 2) // it renews
	began := time.Now()
	if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	got := <-other
	if got.err != nil || len(got.leases) != 1 || got.leases[0].GetAttemptNumber() != 2 {
		t.Fatalf("got %v, %v; want attempt 2", got.leases, got.err)
	}
	took := got.at.Sub(began)
	t.Logf("another has it after %s", took)
	if took < 0 || took > ttl+2*sweepEvery+slack() {
		t.Errorf("another has it %s after the kill, want within %s and two sweeps", took, ttl)
	}
}
