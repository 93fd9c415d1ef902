package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

type (
	report   = leaseholdv1.ReportAttemptRequest
	handlerF = func(context.Context, *rawJob) (*payload, error)
)

// reportsOf runs one attempt by h against f and returns what was reported.
func reportsOf(t *testing.T, f *fakeServer, add func(*worker.Worker), opts ...grpc.ServerOption) []*report {
	t.Helper()
	_, conn := connect(t, f, opts...)
	w := worker.New(config(conn))
	add(w)
	s := start(t, w)
	f.enqueue(lease("x", `{"n":1}`))
	time.Sleep(25 * time.Second) // simulated
	s.mustStop(t)
	return f.state().reports
}

func returns(out *payload, err error) handlerF {
	return func(context.Context, *rawJob) (*payload, error) { return out, err }
}

// coded is an error as programs have them; a nil pointer to it is not a nil error.
type coded struct{ code int }

func (e *coded) Error() string { return fmt.Sprint("code ", e.code) }

func TestReport_SaysWhatTheHandlerReturned(t *testing.T) {
	t.Parallel()
	base := errors.New("disk full")
	for _, tc := range []struct {
		name  string
		h     handlerF
		check func(r *report) bool
	}{
		{"plain error", returns(nil, base), func(r *report) bool {
			f := r.GetFailed().GetFailure()
			return f.GetType() == worker.TypeError && f.GetMessage() == "disk full" && !f.GetNonRetryable() && f.GetNextRetryDelay() == nil
		}},
		{"permanent, wrapped", returns(nil, fmt.Errorf("save: %w", worker.Permanent(base))), func(r *report) bool {
			f := r.GetFailed().GetFailure()
			return f.GetNonRetryable() && f.GetMessage() == "save: disk full"
		}},
		{"retry after, typed", returns(nil, worker.WithType(worker.RetryAfter(base, time.Minute), "DISK")), func(r *report) bool {
			f := r.GetFailed().GetFailure()
			return !f.GetNonRetryable() && f.GetType() == "DISK" && f.GetNextRetryDelay().AsDuration() == time.Minute
		}},
		{"retry after a negative time", returns(nil, worker.RetryAfter(base, -1)), func(r *report) bool {
			d := r.GetFailed().GetFailure().GetNextRetryDelay()
			return d != nil && d.AsDuration() == 0
		}},
		{"release", returns(nil, fmt.Errorf("x: %w", worker.Release("not now", time.Second))), func(r *report) bool {
			return r.GetReleased().GetReason() == "not now" && r.GetReleased().GetNotBeforeDelay().AsDuration() == time.Second
		}},
		{"nothing", returns(nil, nil), func(r *report) bool {
			return r.GetSucceeded() != nil && r.GetSucceeded().GetOutput() == nil
		}},
		{"a context's error while the context lives", returns(nil, context.Canceled), func(r *report) bool {
			return r.GetFailed().GetFailure().GetMessage() == "context canceled"
		}},
		{"broken UTF-8, long", returns(nil, errors.New("a\xffb"+strings.Repeat("é", 8<<10))), func(r *report) bool {
			m := r.GetFailed().GetFailure().GetMessage()
			return strings.HasPrefix(m, "a\uFFFDb") && utf8.ValidString(m) && len(m) <= 8<<10
		}},
		{"panic", func(context.Context, *rawJob) (*payload, error) { panic("boom\xff") }, func(r *report) bool {
			f := r.GetFailed().GetFailure()
			var details struct{ Stack string }
			return f.GetType() == worker.TypePanic && f.GetMessage() == "panic: boom\uFFFD" && !f.GetNonRetryable() &&
				json.Unmarshal([]byte(f.GetDetails().GetJson()), &details) == nil && strings.Contains(details.Stack, "outcome_test.go")
		}},
		{"an error that panics", returns(nil, (*coded)(nil)), func(r *report) bool {
			f := r.GetFailed().GetFailure()
			return f.GetType() == worker.TypePanic && strings.Contains(f.GetMessage(), "nil pointer") && !f.GetNonRetryable()
		}},
		{"goexit", func(context.Context, *rawJob) (*payload, error) { runtime.Goexit(); return nil, nil }, func(r *report) bool {
			return strings.Contains(r.GetFailed().GetFailure().GetMessage(), "Goexit")
		}},
		{"raw output that is not JSON", returns(jsonPayload(`{"a":`), nil), endsWith(worker.TypeInvalidResult)},
		{"raw output in broken UTF-8", returns(jsonPayload("\"\xff\""), nil), endsWith(worker.TypeInvalidResult)},
		{"content type in broken UTF-8", returns(&payload{ContentType: "\xff"}, nil), endsWith(worker.TypeInvalidResult)},
		{"output of the limit", returns(&payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 1<<20)}}, nil), func(r *report) bool {
			return len(r.GetSucceeded().GetOutput().GetData()) == 1<<20
		}},
		{"output over the limit", returns(&payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 1<<20+1)}}, nil), endsWith(worker.TypeResultTooLarge)},
		{"output over gRPC's limit", returns(&payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 20<<20)}}, nil), endsWith(worker.TypeResultTooLarge)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := reportsOf(t, newFake(), func(w *worker.Worker) { worker.HandleRaw(w, "x", tc.h) })
				if len(got) != 1 || !tc.check(got[0]) {
					t.Errorf("reports = %.300v", got)
				}
			})
		})
	}
}

// endsWith checks for a failure of that type that is not tried again.
func endsWith(failureType string) func(*report) bool {
	return func(r *report) bool {
		f := r.GetFailed().GetFailure()
		return f.GetType() == failureType && f.GetNonRetryable() && f.GetMessage() != ""
	}
}

func TestReport_TypedHandlers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		add  func(*worker.Worker)
		want string
	}{
		"input of another shape": {func(w *worker.Worker) {
			worker.Handle(w, "x", func(context.Context, *worker.Job[[]string]) (int, error) { return 0, nil })
		}, worker.TypeInvalidInput},
		"output that does not encode": {func(w *worker.Worker) {
			worker.Handle(w, "x", func(context.Context, *worker.Job[number]) (any, error) { return make(chan int), nil })
		}, worker.TypeInvalidResult},
		"raw message that is not JSON": {func(w *worker.Worker) {
			worker.Handle(w, "x", func(context.Context, *worker.Job[number]) (json.RawMessage, error) { return json.RawMessage("{"), nil })
		}, worker.TypeInvalidResult},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := reportsOf(t, newFake(), tc.add)
				if len(got) != 1 || !endsWith(tc.want)(got[0]) {
					t.Errorf("reports = %v, want %s for good", got, tc.want)
				}
			})
		})
	}
}

// What only the server can know is too large or wrong ends the attempt, too.
func TestReport_RefusedOutputBecomesAFailure(t *testing.T) {
	t.Parallel()
	large := returns(&payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 200<<10)}}, nil)
	for name, tc := range map[string]struct {
		refusal error
		opts    []grpc.ServerOption
		want    string
	}{
		"PAYLOAD_TOO_LARGE":          {refusal: refuse(codes.InvalidArgument, "PAYLOAD_TOO_LARGE"), want: worker.TypeResultTooLarge},
		"any other invalid argument": {refusal: refuse(codes.InvalidArgument, "INVALID_FIELD"), want: worker.TypeInvalidResult},
		"message limit on the way":   {opts: []grpc.ServerOption{grpc.MaxRecvMsgSize(100 << 10)}, want: worker.TypeResultTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.onReport = func(_ context.Context, _ int, req *report) error {
					if req.GetSucceeded() != nil {
						return tc.refusal
					}
					return nil
				}
				got := reportsOf(t, f, func(w *worker.Worker) { worker.HandleRaw(w, "x", large) }, tc.opts...)
				if len(got) != 1 || !endsWith(tc.want)(got[0]) {
					t.Errorf("reports = %.300v, want %s for good", got, tc.want)
				}
			})
		})
	}
}

func TestReport_RefusedDetailsAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onReport = func(_ context.Context, _ int, req *report) error {
			if req.GetFailed().GetFailure().GetDetails() != nil {
				return refuse(codes.InvalidArgument, "PAYLOAD_TOO_LARGE")
			}
			return nil
		}
		got := reportsOf(t, f, func(w *worker.Worker) {
			worker.HandleRaw(w, "x", func(context.Context, *rawJob) (*payload, error) { panic("boom") })
		})
		if len(got) != 1 || got[0].GetFailed().GetFailure().GetType() != worker.TypePanic {
			t.Errorf("reports = %v, want the panic without details", got)
		}
	})
}

// A limit of rates on the way is not a limit of sizes: a large output must get through in the end.
func TestReport_RateLimitIsNoSizeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onReport = func(_ context.Context, n int, _ *report) error {
			if n <= 10 {
				return refuse(codes.ResourceExhausted, "RATE_LIMITED")
			}
			return nil
		}
		got := reportsOf(t, f, func(w *worker.Worker) {
			worker.HandleRaw(w, "x", returns(&payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 200<<10)}}, nil))
		})
		if len(got) != 1 || got[0].GetSucceeded() == nil {
			t.Errorf("reports = %.300v, want the success", got)
		}
	})
}
