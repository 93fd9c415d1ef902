package telemetry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func TestObservers_TellThingsApart(t *testing.T) {
	t.Parallel()
	tele := newWatched(&fakeDatabase{})
	for _, r := range []scheduler.Round{
		{Granted: 1, Left: 1, Claimed: 2}, {Left: 1, Claimed: 1}, {Claimed: 1}, {}, {Err: errors.New("away")}, {Err: context.Canceled},
	} {
		tele.Dispatcher.Round(r)
	}
	for _, err := range []error{
		nil, errors.New("503"), &outbox.RetryLaterError{Cause: errors.New("429")},
		&outbox.RefusedError{Cause: errors.New("410")}, &outbox.AwayError{Cause: errors.New("no route")},
	} {
		tele.Relay.Tried(time.Second, err)
	}
	tele.Transactions.Transaction("claim events", time.Millisecond, 0, "")
	tele.Transactions.Transaction("report", time.Second, 30*time.Millisecond, "conflict")
	tele.Transactions.AttemptEnded(task.AttemptLost, true)
	tele.Transactions.AttemptEnded(task.AttemptLost, false)
	for _, line := range []string{
		`leasehold_dispatch_rounds_total{result="granted"} 1`,
		`leasehold_dispatch_rounds_total{result="left"} 1`,
		`leasehold_dispatch_rounds_total{result="empty"} 2`,
		`leasehold_dispatch_rounds_total{result="failed"} 1`,
		`leasehold_dispatch_batch_requests_sum{stage="claimed"} 4`,
		`leasehold_dispatch_batch_requests_count{stage="granted"} 3`,
		`leasehold_outbox_publish_tries_total{result="acknowledged"} 1`,
		`leasehold_outbox_publish_tries_total{result="failed"} 2`,
		`leasehold_outbox_publish_tries_total{result="refused"} 1`,
		`leasehold_outbox_publish_tries_total{result="away"} 1`,
		`leasehold_transaction_duration_seconds_count{use_case="claim_events"} 1`,
		`leasehold_transaction_duration_seconds_bucket{use_case="report",le="0.5"} 0`,
		`leasehold_transaction_lock_wait_seconds_sum{use_case="report"} 0.03`,
		`leasehold_transaction_failures_total{reason="conflict",use_case="report"} 1`,
		`leasehold_attempts_ended_total{outcome="LOST"} 2`,
		`leasehold_attempt_retries_total{outcome="LOST"} 1`,
	} {
		if !shows(tele, line) {
			t.Errorf("no %s", line)
		}
	}
	if shows(tele, `leasehold_transaction_lock_wait_seconds_count{use_case="claim_events"} 1`) {
		t.Error("a transaction that waits for no lock has a wait")
	}
}

// TestObservers_TakeWhatTheyDoNotKnow: a metric is missing rather than a replica.
func TestObservers_TakeWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	tele := newWatched(&fakeDatabase{})
	tele.Scheduler.Enqueued("?")
	tele.Scheduler.Swept("?", 1)
	tele.Scheduler.Flushed("?", 1)
	tele.Scheduler.Looped("?")
	tele.Transactions.AttemptEnded("?", true)
	tele.Transactions.ExecutionEnded("?")
}

// TestObservers_CostNoMemory: what is observed for every call and transaction allocates nothing.
func TestObservers_CostNoMemory(t *testing.T) {
	tele := newWatched(&fakeDatabase{})
	for what, observe := range map[string]func(){
		"transaction": func() { tele.Transactions.Transaction("claim events", time.Second, 0, "") },
		"attempt":     func() { tele.Transactions.AttemptEnded(task.AttemptFailed, true) },
		"enqueue":     func() { tele.Scheduler.Enqueued(scheduler.EnqueueCreated) },
		"flush":       func() { tele.Scheduler.Flushed(scheduler.LoopReports, 5) },
		"loop":        func() { tele.Scheduler.Looped(scheduler.LoopSweeper) },
		"round":       func() { tele.Dispatcher.Round(scheduler.Round{Claimed: 3, Granted: 3}) },
		"lease":       func() { tele.Dispatcher.Leased(time.Second) },
		"publish":     func() { tele.Relay.Tried(time.Second, nil) },
	} {
		if n := testing.AllocsPerRun(100, observe); n > 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// TestServe_EndsWithItsContext, also while an answer is under way.
func TestServe_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	defer close(answer)
	tele := newWatched(&fakeDatabase{ping: func(context.Context) error {
		close(asked)
		<-answer
		return nil
	}})
	tele.Serving()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tele.Serve(ctx, listener) }()
	get := func(path string) error {
		r, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, "http://"+listener.Addr().String()+path, http.NoBody)
		if err != nil {
			return err
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(r)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	if err := get("/healthz"); err != nil {
		t.Fatal(err)
	}
	cut := make(chan error, 1)
	go func() { cut <- get("/readyz") }()
	<-asked
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := <-cut; err == nil {
		t.Error("an answer that never comes was not cut")
	}
	if err := get("/healthz"); err == nil {
		t.Error("it still listens")
	}
}
