package history_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/history"
)

// call makes a call through a recorder that is answered by a function.
func call(t *testing.T, r *history.Recorder, req, reply any, answer func() error) {
	t.Helper()
	want := errors.New("not called")
	got := r.Unary("me")(t.Context(), "/method", req, reply, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		want = answer()
		return want
	})
	if !errors.Is(got, want) {
		t.Errorf("the caller got %v, the answer was %v", got, want)
	}
}

func refusal(code codes.Code, domain, reason string) error {
	st, _ := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Domain: domain, Reason: reason})
	return st.Err()
}

// TestRecorder_KnowsWhatIsUnknown: only the service's own word is a refusal.
func TestRecorder_KnowsWhatIsUnknown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want history.Outcome
	}{
		{nil, history.OK},
		{refusal(codes.FailedPrecondition, "leasehold", "LEASE_EXPIRED"), history.Refused},
		{refusal(codes.InvalidArgument, "leasehold", "INVALID_FIELD"), history.Refused},
		{refusal(codes.NotFound, "leasehold", "ATTEMPT_NOT_FOUND"), history.Refused},
		{refusal(codes.Unavailable, "leasehold", "STORAGE_UNAVAILABLE"), history.Unknown},
		{refusal(codes.DeadlineExceeded, "leasehold", "DEADLINE_EXCEEDED"), history.Unknown},
		{refusal(codes.Canceled, "leasehold", "CANCELED"), history.Unknown},
		{refusal(codes.Internal, "leasehold", "INTERNAL"), history.Unknown},
		{refusal(codes.FailedPrecondition, "example.com", "LEASE_EXPIRED"), history.Unknown},
		{status.Error(codes.ResourceExhausted, "the answer was too large for this client"), history.Unknown},
		{status.Error(codes.Unavailable, "connection reset"), history.Unknown},
		{errors.New("no status"), history.Unknown},
	} {
		r := &history.Recorder{}
		call(t, r, &leaseholdv1.RenewLeaseRequest{AttemptId: uuid.NewString(), LeaseVersion: 7}, &leaseholdv1.RenewLeaseResponse{}, func() error { return tt.err })
		ops := r.History().Ops
		if len(ops) != 1 || ops[0].Outcome != tt.want || ops[0].Code != status.Code(tt.err) || ops[0].Begin > ops[0].End || ops[0].End == 0 {
			t.Errorf("%v: got %+v, want it %s", tt.err, ops, tt.want)
		}
	}
}

// TestRecorder_ItemsOfBatches: each item has its own answer.
func TestRecorder_ItemsOfBatches(t *testing.T) {
	t.Parallel()
	r := &history.Recorder{}
	ids := []string{uuid.NewString(), uuid.NewString(), uuid.NewString()}
	request, reply := &leaseholdv1.BatchReportAttemptsRequest{}, &leaseholdv1.BatchReportAttemptsResponse{}
	for _, id := range ids {
		request.Reports = append(request.Reports, &leaseholdv1.ReportAttemptRequest{AttemptId: id, LeaseVersion: 7, Outcome: &leaseholdv1.ReportAttemptRequest_Canceled_{}})
	}
	late, _ := status.FromError(refusal(codes.FailedPrecondition, "leasehold", "LEASE_EXPIRED"))
	busy, _ := status.FromError(refusal(codes.Unavailable, "leasehold", "STORAGE_UNAVAILABLE"))
	reply.Results = []*leaseholdv1.BatchReportAttemptsResult{
		{Result: &leaseholdv1.BatchReportAttemptsResult_Response{Response: &leaseholdv1.ReportAttemptResponse{Replayed: true}}},
		{Result: &leaseholdv1.BatchReportAttemptsResult_Error{Error: late.Proto()}},
		{Result: &leaseholdv1.BatchReportAttemptsResult_Error{Error: busy.Proto()}},
	}
	call(t, r, request, reply, func() error { return nil })
	ops := r.History().Ops
	for i, want := range []history.Outcome{history.OK, history.Refused, history.Unknown} {
		if ops[i].Outcome != want || ops[i].Attempt.String() != ids[i] || ops[i].Replayed != (i == 0) || ops[i].Result != "CANCELED" {
			t.Errorf("item %d is %+v, want it %s", i, ops[i], want)
		}
	}
}

// TestRecorder_LeavesOutWhatSaysNothing: polls without a word, reads that were lost, other calls.
func TestRecorder_LeavesOutWhatSaysNothing(t *testing.T) {
	t.Parallel()
	r := &history.Recorder{}
	fine := func() error { return nil }
	gone := func() error { return status.Error(codes.Unavailable, "gone") }
	call(t, r, &leaseholdv1.LeaseAttemptRequest{}, &leaseholdv1.LeaseAttemptResponse{}, fine)
	call(t, r, &leaseholdv1.GetExecutionRequest{}, &leaseholdv1.GetExecutionResponse{}, gone)
	call(t, r, &leaseholdv1.ListExecutionsRequest{}, &leaseholdv1.ListExecutionsResponse{}, fine)
	call(t, r, &leaseholdv1.EnqueueExecutionRequest{ValidateOnly: true}, &leaseholdv1.EnqueueExecutionResponse{}, fine)
	if ops := r.History().Ops; len(ops) != 0 {
		t.Errorf("kept %v", ops)
	}
	call(t, r, &leaseholdv1.LeaseAttemptRequest{RequestId: "r"}, &leaseholdv1.LeaseAttemptResponse{}, fine)
	call(t, r, &leaseholdv1.LeaseAttemptRequest{}, &leaseholdv1.LeaseAttemptResponse{}, gone)
	call(t, r, &leaseholdv1.ListExecutionsRequest{}, &leaseholdv1.ListExecutionsResponse{}, func() error { return status.Error(codes.Internal, "a bug") })
	if ops := r.History().Ops; len(ops) != 3 {
		t.Errorf("kept %v, want 3", ops)
	}
}

// fakeStream ends at once.
type fakeStream struct {
	grpc.ClientStream
	err error
}

func (s fakeStream) RecvMsg(any) error { return s.err }

// TestRecorder_StreamsThatEndInBugs: of streams only those are kept, how ever they came to be.
func TestRecorder_StreamsThatEndInBugs(t *testing.T) {
	t.Parallel()
	r := &history.Recorder{}
	for _, err := range []error{io.EOF, status.Error(codes.Unavailable, "gone"), status.Error(codes.Internal, "a bug")} {
		for _, opens := range []bool{true, false} {
			if !opens && errors.Is(err, io.EOF) {
				continue // none fails so
			}
			stream, got := r.Stream("me")(t.Context(), nil, nil, "/watch", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				if opens {
					return fakeStream{err: err}, nil
				}
				return nil, err
			})
			if opens {
				got = stream.RecvMsg(nil)
			}
			if !errors.Is(got, err) {
				t.Errorf("a stream that ended with %v told %v", err, got)
			}
		}
	}
	ops := slices.DeleteFunc(r.History().Ops, func(o history.Op) bool { return o.Code == codes.Internal && o.Key == "/watch" })
	if n := len(r.History().Ops); n != 2 || len(ops) != 0 {
		t.Errorf("%d were kept, of which %v are no bugs", n, ops)
	}
}

// TestRecorder_ManyAtOnce: no op is lost, and those under way are there, as unknown.
func TestRecorder_ManyAtOnce(t *testing.T) {
	t.Parallel()
	const callers, calls = 8, 2000
	r := &history.Recorder{}
	release := r.Working("me", &leaseholdv1.Lease{AttemptId: uuid.NewString(), LeaseVersion: 1})
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range calls {
				call(t, r, &leaseholdv1.CancelExecutionRequest{ExecutionId: uuid.NewString()}, &leaseholdv1.CancelExecutionResponse{}, func() error { return nil })
			}
		})
	}
	group.Wait()
	before := r.History().Ops
	release()
	release()
	after := r.History().Ops
	if len(before) != callers*calls+1 || len(after) != len(before) {
		t.Errorf("%d ops, then %d, want %d", len(before), len(after), callers*calls+1)
	}
	if last := before[len(before)-1]; last.Kind != history.Work || last.Outcome != history.Unknown || last.End != 0 {
		t.Errorf("what is under way is %+v", last)
	}
	if last := after[len(after)-1]; last.Kind != history.Work || last.Outcome != history.OK || last.End <= last.Begin {
		t.Errorf("what is over is %+v", last)
	}
}

// TestHistory_LinesOfSeveralProcesses: what is written is read again; of a process that was killed,
// the calls under way are unknown, and a torn line is no harm.
func TestHistory_LinesOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := history.NewLog(&log)
	report := &leaseholdv1.ReportAttemptRequest{AttemptId: uuid.NewString(), LeaseVersion: 7, Outcome: &leaseholdv1.ReportAttemptRequest_Canceled_{}}
	call(t, r, report, &leaseholdv1.ReportAttemptResponse{}, func() error { return nil })
	r.Delivered(history.Delivery{ID: uuid.New(), Type: "t", Sequence: 3})
	var killed []byte
	call(t, r, report, &leaseholdv1.ReportAttemptResponse{}, func() error {
		killed = append(slices.Clone(log.Bytes()), `{"call": 9, "ops`...)
		return nil
	})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	whole := must[history.History](t)(history.Read(bytes.NewReader(log.Bytes())))
	cut := must[history.History](t)(history.Read(bytes.NewReader(killed)))
	if len(whole.Ops) != 2 || len(whole.Deliveries) != 1 || !whole.Sink || whole.Ops[1].Outcome != history.OK {
		t.Errorf("read %+v", whole)
	}
	if len(cut.Ops) != 2 || cut.Ops[1].Outcome != history.Unknown || cut.Ops[1].End != 0 || cut.Ops[1].Begin != whole.Ops[1].Begin {
		t.Errorf("of the one that was killed read %+v", cut)
	}
	var text bytes.Buffer
	if err := whole.Write(&text); err != nil {
		t.Fatal(err)
	}
	both := must[history.History](t)(history.Read(strings.NewReader(text.String() + log.String())))
	merged := must[history.History](t)(history.Merge(whole, history.History{}, whole))
	if diff := cmp.Diff(merged, both); diff != "" {
		t.Errorf("merged, and read after each other: %s", diff)
	}
}

func TestHistory_BadLines(t *testing.T) {
	t.Parallel()
	if _, err := history.Read(strings.NewReader("{\"clock\":\"a\"}\nno JSON\n{}\n")); err == nil {
		t.Error("a bad line in the middle was accepted")
	}
	if _, err := history.Read(strings.NewReader("{\"clock\":\"a\"}\n{\"clock\":\"b\"}\n")); !errors.Is(err, history.ErrClocks) {
		t.Errorf("lines of two machines: %v", err)
	}
	if _, err := history.Merge(history.History{Clock: "a"}, history.History{Clock: "b"}); !errors.Is(err, history.ErrClocks) {
		t.Errorf("histories of two machines: %v", err)
	}
	r := history.NewLog(full{})
	if err := r.Err(); err == nil {
		t.Error("a log that could not be written is no error")
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestClock_IsShared: an instant of another process lies between two of ours.
func TestClock_IsShared(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), tellTime+"=1")
	before := history.Now()
	out, err := child.Output()
	after := history.Now()
	if err != nil {
		t.Fatal(err)
	}
	told, err := strconv.ParseInt(string(out), 10, 64)
	if err != nil || told <= before || told >= after {
		t.Errorf("between %d and %d another process had %q (%v)", before, after, out, err)
	}
}
