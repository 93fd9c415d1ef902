package hostile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
)

// wantFull is the answer at a limit that many calls reach together: RESOURCE_EXHAUSTED, which one
// it is and how much it is, and when to come back.
func wantFull(t *testing.T, what string, err error, reason string, limit string) {
	t.Helper()
	st := status.Convert(err)
	info := drill.Info(err)
	retry := false
	for _, d := range st.Details() {
		_, isRetry := d.(*errdetails.RetryInfo)
		retry = retry || isRetry
	}
	if st.Code() != codes.ResourceExhausted || info.GetReason() != reason || info.GetMetadata()["limit"] != limit || !retry {
		t.Errorf("%s: got %v, %v, retry %t; want RESOURCE_EXHAUSTED, %s with limit %s", what, err, info, retry, reason, limit)
	}
}

// TestLimits_OfNamespaces: names that a client can make up fill no table for ever: capabilities,
// workers and drains of a namespace have a limit. What is known goes on at the limit, and so does
// another namespace. Each is filled to one below it.
func TestLimits_OfNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	defer w.end(t)
	ctx := t.Context()
	for _, sql := range []string{
		`INSERT INTO capabilities (namespace, name) SELECT 'full', 'c' || n FROM generate_series(1, 9999) n`,
		`INSERT INTO drains (namespace, kind, value, created_at, reason) SELECT 'full', 'NODE', 'n' || n, now(), '' FROM generate_series(1, 9999) n`,
		`INSERT INTO workers (id, namespace, name, slots, capabilities, registered_at, last_seen_at)
		 SELECT gen_random_uuid(), 'full', 'w' || n, 1, '{c1}', now(), now() FROM generate_series(1, 99999) n`,
	} {
		if _, err := w.db.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	c := w.cluster.Client(0)
	enqueue := func(ns, capability string) error {
		_, err := c.Executions.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{Namespace: ns, Name: "job", Steps: []*leaseholdv1.StepSpec{step("s0", capability)}})
		return err
	}
	register := func(ns, name, capability string) error {
		_, err := c.Workers.RegisterWorker(ctx, &leaseholdv1.RegisterWorkerRequest{Namespace: ns, Name: name, Capabilities: []string{capability}})
		return err
	}
	pause := func(ns, capability string) error {
		_, err := c.Operators.PauseCapability(ctx, &leaseholdv1.PauseCapabilityRequest{Namespace: ns, Capability: capability})
		return err
	}
	drain := func(ns, node string) error {
		_, err := c.Operators.SetWorkerDrain(ctx, &leaseholdv1.SetWorkerDrainRequest{
			Namespace: ns, Target: &leaseholdv1.SetWorkerDrainRequest_Node{Node: node}, Draining: true,
		})
		return err
	}
	for name, err := range map[string]error{
		"the last capability": enqueue("full", "last"), "a known capability": enqueue("full", "c1"), "a known one, paused": pause("full", "c2"),
		"the last worker": register("full", "last", "c1"), "a known worker": register("full", "w1", "c2"),
		"the last drain": drain("full", "last"), "a known drain": drain("full", "n1"),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	before := w.digest(t)
	wantFull(t, "one more capability of a step", enqueue("full", "more"), "TOO_MANY_CAPABILITIES", "10000")
	wantFull(t, "one more paused capability", pause("full", "more"), "TOO_MANY_CAPABILITIES", "10000")
	wantFull(t, "one more capability of a worker", register("full", "w2", "more"), "TOO_MANY_CAPABILITIES", "10000")
	wantFull(t, "one more worker", register("full", "more", "c1"), "TOO_MANY_WORKERS", "100000")
	wantFull(t, "one more drain", drain("full", "more"), "TOO_MANY_DRAINS", "10000")
	if after := w.digest(t); after != before {
		t.Errorf("refused, and yet something changed:\n%s\n%s", before, after)
	}
	for name, err := range map[string]error{
		"capability": enqueue("other", "more"), "worker": register("other", "more", "more"), "drain": drain("other", "more"), "pause": pause("other", "paused"),
	} {
		if err != nil {
			t.Errorf("another namespace's %s: %v", name, err)
		}
	}
}

// TestLimits_OfReplicas: polls that wait and watches that are open have a limit; one that ends makes
// room for another.
func TestLimits_OfReplicas(t *testing.T) {
	t.Parallel()
	url := databases.New(t)
	cluster, err := drill.Start(t.Context(), drill.Config{URL: url, Replicas: 1, MaxPolls: 3, MaxStreams: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Stop()
	c := cluster.Client(0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	worker, err := c.Register(ctx, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"none"}, Slots: 10})
	if err != nil {
		t.Fatal(err)
	}
	polls := make(chan error, 3)
	polling, stopPolling := context.WithCancel(ctx)
	for range 3 {
		go func() {
			err := status.Error(codes.ResourceExhausted, "")
			for status.Code(err) == codes.ResourceExhausted { // the test's own poll may have been there first
				_, err = worker.Lease(polling, drill.Poll{Wait: 50 * time.Second})
			}
			polls <- err
		}()
	}
	poll := func(ctx context.Context) error {
		_, err := c.Workers.LeaseAttempt(ctx, &leaseholdv1.LeaseAttemptRequest{WorkerId: worker.ID, SessionId: worker.Session, WaitTimeout: durationpb.New(0)})
		return err
	}
	await(t, "a refused poll", func() bool { err = poll(ctx); return status.Code(err) == codes.ResourceExhausted })
	wantFull(t, "one more poll", err, "TOO_MANY_POLLS", "3")
	stopPolling()
	for range 3 {
		if err := <-polls; status.Code(err) != codes.Canceled {
			t.Errorf("a poll ended with %v", err)
		}
	}
	await(t, "room for a poll", func() bool { return poll(ctx) == nil })

	answer, err := c.Executions.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{Name: "job", Steps: []*leaseholdv1.StepSpec{step("s0", "never")}})
	if err != nil {
		t.Fatal(err)
	}
	watch := func(ctx context.Context) error {
		stream, err := c.Executions.WatchExecution(ctx, &leaseholdv1.WatchExecutionRequest{ExecutionId: answer.GetExecution().GetId()})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	watching, stopWatching := context.WithCancel(ctx)
	if err := errors.Join(watch(watching), watch(watching)); err != nil {
		t.Fatal(err)
	}
	wantFull(t, "one more watch", watch(ctx), "TOO_MANY_STREAMS", "2")
	stopWatching()
	await(t, "room for a watch", func() bool { return watch(ctx) == nil })
}

// TestLimits_OfTextsThatAreCut: what a worker says about how it went is never refused for its
// length: it is cut, at a rune.
func TestLimits_OfTextsThatAreCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	defer w.end(t)
	f := &furnisher{t: t, w: w, c: w.cluster.Client(0)}
	s := f.register("cut", "cut")
	l := f.lease(s, "cut")
	long := strings.Repeat("ä", 100_000)
	_, err := f.c.Workers.RenewLease(t.Context(), &leaseholdv1.RenewLeaseRequest{
		AttemptId: l.attempt, LeaseVersion: l.version, SessionId: l.session, ProgressMessage: long,
	})
	f.must(err)
	f.report(l, drill.Failed(&leaseholdv1.Failure{Type: long, Message: long, NonRetryable: true}))
	released := f.lease(s, "cut")
	f.report(released, drill.Released(long, time.Hour))
	rows, err := w.db.Query(t.Context(), `SELECT length(convert_to(COALESCE(failure ->> 'type', ''), 'UTF8')), length(convert_to(COALESCE(failure ->> 'message', ''), 'UTF8')),
		length(convert_to(reason, 'UTF8')) FROM attempts WHERE id = ANY($1) ORDER BY number`, []string{l.attempt, released.attempt})
	f.must(err)
	got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (n [3]int, err error) {
		err = r.Scan(&n[0], &n[1], &n[2])
		return n, err
	})
	f.must(err)
	for _, n := range got {
		if n[0] > 256 || n[1] > 8<<10 || n[2] > 1<<10 {
			t.Errorf("kept %d bytes of type, %d of message, %d of reason", n[0], n[1], n[2])
		}
	}
	if len(got) != 2 || got[0][1]+got[1][1] == 0 || got[0][2]+got[1][2] == 0 {
		t.Errorf("kept nothing: %v", got)
	}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	err := drill.Await(t.Context(), time.Minute, what, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		t.Fatal(err)
	}
}
