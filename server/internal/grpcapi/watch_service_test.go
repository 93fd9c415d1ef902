package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// watched reads a stream to its end.
func watched(t *testing.T, r *rig, after int64) ([]*leaseholdv1.WatchExecutionResponse, error) {
	t.Helper()
	stream, err := r.executions.WatchExecution(t.Context(), &leaseholdv1.WatchExecutionRequest{ExecutionId: someID, AfterRevision: after})
	if err != nil {
		t.Fatal(err)
	}
	var list []*leaseholdv1.WatchExecutionResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		list = append(list, m)
	}
}

func viewAt(revision int64, steps int, text string) *scheduler.ExecutionView {
	v := &scheduler.ExecutionView{
		ExecutionData: task.ExecutionData{ID: uuid.MustParse(someID), Revision: revision, State: task.ExecutionRunning},
		Labels:        map[string]string{"k": "v"},
	}
	for i := range steps {
		v.Steps = append(v.Steps, scheduler.StepView{ID: uuid.New(), Name: fmt.Sprint("s", i), State: task.StepReady, Failure: &task.Failure{Message: text}})
	}
	return v
}

// entries are changes from one sequence to another, with a step each.
func entries(from, to int64) scheduler.Changes {
	c := scheduler.Changes{Execution: viewAt(to, 0, "")}
	for n := from; n <= to; n++ {
		c.Entries = append(c.Entries, scheduler.ChangeView{
			EntryView: scheduler.EntryView{Entry: task.Entry{Sequence: n, StepName: "a"}}, Step: &scheduler.StepView{Name: "a", State: task.StepRunning},
		})
	}
	return c
}

// TestWatch_SnapshotInMessages: a snapshot comes in as many messages as its steps need; only the
// last one has a revision, so that one which is cut off begins anew.
func TestWatch_SnapshotInMessages(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	r := newRig(t, &fakeApp{watch: func(_ context.Context, id uuid.UUID, after int64, tell func(scheduler.Update) error) error {
		if id.String() != someID || after != 0 {
			t.Errorf("asked for %s after %d", id, after)
		}
		return errors.Join(
			tell(scheduler.Update{Snapshot: viewAt(7, 20, strings.Repeat("x", 8000)), More: true}),
			tell(scheduler.Update{Snapshot: viewAt(7, 3, "")}),
			tell(scheduler.Update{Changes: entries(8, 9)}),
		)
	}}, Config{MaxMessageBytes: limit})
	list, err := watched(t, r, 0)
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for i, m := range list {
		if size := proto.Size(m); size > limit {
			t.Errorf("message %d has %d bytes", i, size)
		}
		s := m.GetSnapshot()
		if i >= len(list)-2 {
			c := m.GetChange()
			if want := int64(10 - len(list) + i); m.GetRevision() != want || c.GetEntry().GetSequence() != want {
				t.Errorf("message %d is revision %d, entry %d, want %d", i, m.GetRevision(), c.GetEntry().GetSequence(), want)
			}
			if c.GetStep().GetState() != leaseholdv1.StepState_STEP_STATE_RUNNING || c.GetExecution().GetRevision() != 9 || c.GetExecution().GetLabels() != nil {
				t.Errorf("message %d is %v", i, m)
			}
			continue
		}
		steps += len(s.GetExecution().GetSteps())
		last := i == len(list)-3
		if s.GetMore() == last || (m.GetRevision() == 7) != last || s.GetExecution().GetRevision() != 7 || s.GetExecution().GetLabels()["k"] != "v" {
			t.Errorf("message %d of %d: revision %d, more %v, execution as of %d", i, len(list), m.GetRevision(), s.GetMore(), s.GetExecution().GetRevision())
		}
	}
	if steps != 23 || len(list) < 6 {
		t.Errorf("%d steps in %d messages", steps, len(list))
	}
}

// waits is a watch that tells something, and then waits for its context's end.
func waits(began *sync.WaitGroup, updates ...scheduler.Update) func(context.Context, uuid.UUID, int64, func(scheduler.Update) error) error {
	return func(ctx context.Context, _ uuid.UUID, _ int64, tell func(scheduler.Update) error) error {
		for _, u := range updates {
			if err := tell(u); err != nil {
				return err
			}
		}
		began.Done()
		<-ctx.Done()
		return ctx.Err()
	}
}

// endedAt fails the test unless an error is STREAM_ENDED with a revision.
func endedAt(t *testing.T, err error, revision string) {
	t.Helper()
	got := refusalOf(t, err)
	retry := false
	for _, d := range got.details {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			retry = info.GetRetryDelay().AsDuration() > 0
		}
	}
	if got.code != codes.Unavailable || got.info.GetReason() != "STREAM_ENDED" || got.info.GetMetadata()["revision"] != revision || !retry {
		t.Errorf("got %s, want STREAM_ENDED at %s", got.text, revision)
	}
}

// TestWatch_ServerStops: every stream ends at once and says from where to go on, and the log does
// not fill with that.
func TestWatch_ServerStops(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		updates  []scheduler.Update
		revision string
	}{
		"nothing told":           {nil, "5"},
		"a whole snapshot":       {[]scheduler.Update{{Snapshot: viewAt(7, 2, "")}}, "7"},
		"a part of a snapshot":   {[]scheduler.Update{{Snapshot: viewAt(7, 2, ""), More: true}}, "0"},
		"changes after snapshot": {[]scheduler.Update{{Snapshot: viewAt(7, 2, "")}, {Changes: entries(8, 11)}}, "11"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const streams = 50
			began := &sync.WaitGroup{}
			began.Add(streams)
			r := newRig(t, &fakeApp{watch: waits(began, tt.updates...)}, Config{})
			ends := make(chan error, streams)
			for range streams {
				go func() {
					_, err := watched(t, r, 5)
					ends <- err
				}()
			}
			began.Wait()
			start := time.Now()
			r.server.Shutdown(nil)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the server stopped only after %s", took)
			}
			for range streams {
				endedAt(t, <-ends, tt.revision)
			}
			if log := r.log.String(); strings.Contains(log, "finished call") {
				t.Errorf("logged: %s", log[:min(len(log), 500)])
			}
		})
	}
}

// TestWatch_EndsInTheMiddle of many changes, when the server stops: it does not tell them all first.
func TestWatch_EndsInTheMiddle(t *testing.T) {
	t.Parallel()
	told := make(chan struct{})
	r := newRig(t, &fakeApp{watch: func(ctx context.Context, _ uuid.UUID, _ int64, tell func(scheduler.Update) error) error {
		close(told)
		<-ctx.Done()
		return tell(scheduler.Update{Changes: entries(6, 1000)})
	}}, Config{})
	ended := make(chan error, 1)
	go func() {
		_, err := watched(t, r, 5)
		ended <- err
	}()
	<-told
	r.server.Shutdown(nil)
	endedAt(t, <-ended, "5")
}

// TestWatch_ConnectionBecomesOld: a stream ends before its connection is cut, whether it was
// opened early or late, and other calls are left alone.
func TestWatch_ConnectionBecomesOld(t *testing.T) {
	t.Parallel()
	began := &sync.WaitGroup{}
	began.Add(3)
	r := newRig(t, &fakeApp{watch: waits(began, scheduler.Update{Snapshot: viewAt(7, 1, "")})}, Config{MaxConnectionAge: time.Second})
	start := time.Now()
	for i := range 3 { // one after the other, over one connection or several
		_, err := watched(t, r, 0)
		endedAt(t, err, "7")
		if lived := time.Since(start); i == 0 && lived < 900*time.Millisecond {
			t.Errorf("the first stream lived %s", lived)
		}
	}
}

// TestUntilOld: streams live as long as gRPC surely lets their connections live.
func TestUntilOld(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ maxAge, age, want time.Duration }{
		{30 * time.Minute, 0, 27*time.Minute + 35*time.Second},
		{30 * time.Minute, 20 * time.Minute, 7*time.Minute + 35*time.Second},
		{30 * time.Minute, 27 * time.Minute, 35 * time.Second},
		{30 * time.Minute, 33 * time.Minute, 35 * time.Second},
		{time.Minute, 0, time.Minute},
		{time.Minute, 50 * time.Second, 10 * time.Second},
	} {
		began := time.Now()
		ctx, cancel := untilOld(context.WithValue(t.Context(), birth{}, began.Add(-tt.age)), tt.maxAge)
		deadline, _ := ctx.Deadline()
		cancel()
		if got := deadline.Sub(began); got < tt.want || got > tt.want+5*time.Second {
			t.Errorf("of %s, at %s: lives %s, want %s", tt.maxAge, tt.age, got, tt.want)
		}
		// What is left until the earliest cut: grace after the earliest word of it.
		if cut := max(tt.maxAge-tt.maxAge/10-tt.age, 0) + ageGrace; tt.want > cut-10*time.Second {
			t.Errorf("of %s, at %s: lives %s, and may be cut after %s", tt.maxAge, tt.age, tt.want, cut)
		}
	}
}

// TestWatch_CallerLeaves: the application hears of it.
func TestWatch_CallerLeaves(t *testing.T) {
	t.Parallel()
	left := make(chan error, 1)
	r := newRig(t, &fakeApp{watch: func(ctx context.Context, _ uuid.UUID, _ int64, tell func(scheduler.Update) error) error {
		if err := tell(scheduler.Update{Snapshot: viewAt(7, 1, "")}); err != nil {
			return err
		}
		<-ctx.Done()
		left <- ctx.Err()
		return ctx.Err()
	}}, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.executions.WatchExecution(ctx, &leaseholdv1.WatchExecutionRequest{ExecutionId: someID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the application got %v", err)
	}
}

// TestWatch_StopsDespiteOneThatDoesNotRead: a client that takes nothing keeps the server for the
// time of calls under way at most.
func TestWatch_StopsDespiteOneThatDoesNotRead(t *testing.T) {
	t.Parallel()
	full := make(chan struct{})
	r := newRig(t, &fakeApp{watch: func(_ context.Context, _ uuid.UUID, _ int64, tell func(scheduler.Update) error) error {
		once := sync.OnceFunc(func() { close(full) })
		defer once()
		timer := time.AfterFunc(time.Second, once) // it is stuck by then, or will be soon
		defer timer.Stop()
		for {
			if err := tell(scheduler.Update{Snapshot: viewAt(7, 100, strings.Repeat("x", 8000))}); err != nil {
				return err
			}
		}
	}}, Config{StopTimeout: 300 * time.Millisecond})
	stream, err := r.executions.WatchExecution(t.Context(), &leaseholdv1.WatchExecutionRequest{ExecutionId: someID})
	if err != nil {
		t.Fatal(err)
	}
	<-full
	start := time.Now()
	r.server.Shutdown(nil)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the server stopped only after %s", took)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("ended with %v", err)
	}
}

// TestWatch_Refusals: the errors of streams are those of calls.
func TestWatch_Refusals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{&scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: someID}, codes.NotFound, "EXECUTION_NOT_FOUND"},
		{&scheduler.ExhaustedError{Reason: scheduler.ReasonTooManyStreams, Limit: 1}, codes.ResourceExhausted, "TOO_MANY_STREAMS"},
		{&scheduler.UnavailableError{Cause: errors.New("secret")}, codes.Unavailable, "STORAGE_UNAVAILABLE"},
		{errors.New("secret"), codes.Internal, "INTERNAL"},
	} {
		r := newRig(t, &fakeApp{watch: func(context.Context, uuid.UUID, int64, func(scheduler.Update) error) error { return tt.err }}, Config{})
		_, err := watched(t, r, 0)
		if got := refusalOf(t, err); got.code != tt.code || got.info.GetReason() != tt.reason || strings.Contains(got.text, "secret") {
			t.Errorf("%v became %s", tt.err, got.text)
		}
	}
	r := newRig(t, &fakeApp{watch: func(context.Context, uuid.UUID, int64, func(scheduler.Update) error) error { panic("secret") }}, Config{})
	_, err := watched(t, r, 0)
	if got := refusalOf(t, err); got.code != codes.Internal || strings.Contains(got.text, "secret") {
		t.Errorf("a panic became %s", got.text)
	}
	stream, err := r.executions.WatchExecution(t.Context(), &leaseholdv1.WatchExecutionRequest{ExecutionId: "x", AfterRevision: -1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	if got := refusalOf(t, err); got.code != codes.InvalidArgument || got.count != 2 || got.fields["execution_id"] == "" || got.fields["after_revision"] == "" {
		t.Errorf("bad fields became %s", got.text)
	}
}
