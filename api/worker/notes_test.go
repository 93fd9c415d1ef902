package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

type (
	renewReq  = leaseholdv1.RenewLeaseRequest
	renewResp = leaseholdv1.RenewLeaseResponse
)

// handled runs one attempt by h against f and returns what the handler returned.
func handled(t *testing.T, f *fakeServer, h func(context.Context, *rawJob) error, opts ...grpc.ServerOption) error {
	t.Helper()
	_, conn := connect(t, f, opts...)
	w := worker.New(config(conn))
	done := make(chan error, 1)
	worker.HandleRaw(w, "x", func(ctx context.Context, job *rawJob) (*payload, error) {
		err := h(ctx, job)
		done <- err
		return nil, err
	})
	s := start(t, w)
	f.enqueue(lease("x", "1"))
	err := <-done
	synctest.Wait()
	s.mustStop(t)
	return err
}

// noted are the renewals that bore something.
func noted(f *fakeServer) []*renewReq {
	var list []*renewReq
	for _, r := range f.state().renewals {
		if r.GetCheckpoint() != nil || r.Progress != nil || r.GetProgressMessage() != "" {
			list = append(list, r)
		}
	}
	return list
}

func TestCheckpoint_SavedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		err := handled(t, f, func(ctx context.Context, job *rawJob) error {
			begun := time.Now()
			for n := range 3 {
				if err := job.SaveCheckpoint(ctx, number{n}); err != nil {
					return err
				}
			}
			if took := time.Since(begun); took > time.Second {
				return fmt.Errorf("took %v", took)
			}
			return job.SaveCheckpoint(ctx, &payload{Body: &leaseholdv1.Payload_Data{Data: []byte{0, 0xff}}})
		})
		if err != nil {
			t.Fatal(err)
		}
		got := noted(f)
		if len(got) != 4 || got[2].GetCheckpoint().GetJson() != `{"n":2}` || string(got[3].GetCheckpoint().GetData()) != "\x00\xff" {
			t.Errorf("checkpoints sent: %v", got)
		}
		if r := f.state().reports; len(r) != 1 || r[0].GetCheckpoint() != nil {
			t.Errorf("reports = %v, want one without a checkpoint", r)
		}
	})
}

// What is set travels with the renewal that is due anyway, the newest of it.
func TestCheckpoint_TravelsWithTheNextRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		err := handled(t, f, func(_ context.Context, job *rawJob) error {
			for n := range 100 {
				if err := job.SetCheckpoint(number{n}); err != nil {
					return err
				}
				job.Progress(float64(n)/100, fmt.Sprintf("piece %d\xff", n))
			}
			job.Progress(0.5, "")
			time.Sleep(25 * time.Second)
			job.Progress(7, "beyond")
			time.Sleep(10 * time.Second)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got := noted(f)
		if len(got) != 2 || got[0].GetCheckpoint().GetJson() != `{"n":99}` || got[0].GetProgress() != 0.5 || got[0].GetProgressMessage() != "piece 99\uFFFD" {
			t.Fatalf("sent: %v", got)
		}
		if got[1].GetCheckpoint() != nil || got[1].GetProgress() != 1 || got[1].GetProgressMessage() != "beyond" {
			t.Errorf("sent later: %v", got[1])
		}
		if n := len(f.state().renewCalls); n > 4 {
			t.Errorf("%d renewals within 35 s", n)
		}
	})
}

// A checkpoint that no renewal has taken goes with the report, unless that is a success.
func TestCheckpoint_TravelsWithTheReport(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"failed":    {errors.New("no"), `{"n":2}`},
		"released":  {worker.Release("no", 0), `{"n":2}`},
		"succeeded": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				_ = handled(t, f, func(ctx context.Context, job *rawJob) error {
					if err := errors.Join(job.SaveCheckpoint(ctx, number{1}), job.SetCheckpoint(number{2})); err != nil {
						t.Error(err)
					}
					return tc.err
				})
				r := f.state().reports
				if len(r) != 1 || r[0].GetCheckpoint().GetJson() != tc.want {
					t.Errorf("reports = %v, want the checkpoint %q", r, tc.want)
				}
			})
		})
	}
}

// What is over the limits that the server told is refused here, before anything is sent.
func TestCheckpoint_RefusedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		err := handled(t, f, func(ctx context.Context, job *rawJob) error {
			large := strings.Repeat("x", 1<<20)
			for _, tc := range []struct {
				value any
				want  error
			}{
				{large, worker.ErrPayloadTooLarge},
				{&payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 1<<20+1)}}, worker.ErrPayloadTooLarge},
				{jsonPayload("{"), worker.ErrInvalidPayload},
				{jsonPayload("\"\xff\""), worker.ErrInvalidPayload},
				{&payload{ContentType: "\xff"}, worker.ErrInvalidPayload},
				{make(chan int), worker.ErrInvalidPayload},
			} {
				if err := job.SaveCheckpoint(ctx, tc.value); !errors.Is(err, tc.want) {
					t.Errorf("SaveCheckpoint(%.40v) = %v, want %v", tc.value, err, tc.want)
				}
				if err := job.SetCheckpoint(tc.value); !errors.Is(err, tc.want) {
					t.Errorf("SetCheckpoint(%.40v) = %v, want %v", tc.value, err, tc.want)
				}
			}
			return ctx.Err()
		})
		if err != nil || len(noted(f)) != 0 {
			t.Errorf("the handler ended with %v, %d checkpoints were sent", err, len(noted(f)))
		}
	})
}

// What only the server knows to be too large or wrong is told to the handler, and the lease
// lives on: it is renewed again at once, without it.
func TestCheckpoint_RefusedByTheServer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refusal error
		opts    []grpc.ServerOption
		want    error
	}{
		"too large":                {refusal: refuse(codes.InvalidArgument, "PAYLOAD_TOO_LARGE"), want: worker.ErrPayloadTooLarge},
		"not JSON":                 {refusal: refuse(codes.InvalidArgument, "INVALID_JSON"), want: worker.ErrInvalidPayload},
		"a reason of later":        {refusal: refuse(codes.InvalidArgument, "SOMETHING"), want: worker.ErrInvalidPayload},
		"too large for the way":    {opts: []grpc.ServerOption{grpc.MaxRecvMsgSize(100 << 10)}, want: worker.ErrPayloadTooLarge},
		"refused after some tries": {refusal: status.Error(codes.Unavailable, "away"), want: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.onRenewal = func(req *renewReq, _ *renewResp) error {
					if req.GetCheckpoint() != nil {
						return tc.refusal
					}
					return nil
				}
				err := handled(t, f, func(ctx context.Context, job *rawJob) error {
					limited, cancel := context.WithTimeout(ctx, 20*time.Second)
					defer cancel()
					if err := job.SaveCheckpoint(limited, strings.Repeat("x", 200<<10)); !errors.Is(err, tc.want) {
						t.Errorf("SaveCheckpoint = %v, want %v", err, tc.want)
					}
					time.Sleep(2 * time.Minute)
					if err := context.Cause(ctx); err != nil {
						t.Errorf("the context ended with %v, want it to live on", err)
					}
					return nil
				}, tc.opts...)
				if err != nil || len(f.state().reports) != 1 {
					t.Errorf("the handler returned %v, %d reports", err, len(f.state().reports))
				}
			})
		})
	}
}

func TestCheckpoint_OfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenewal = func(*renewReq, *renewResp) error { return refuse(codes.FailedPrecondition, "LEASE_SUPERSEDED") }
		_ = handled(t, f, func(ctx context.Context, job *rawJob) error {
			free := context.WithoutCancel(ctx)
			if err := job.SaveCheckpoint(free, 1); !errors.Is(err, worker.ErrLeaseLost) {
				t.Errorf("SaveCheckpoint = %v, want ErrLeaseLost", err)
			}
			if err := job.SaveCheckpoint(free, 2); !errors.Is(err, worker.ErrLeaseLost) {
				t.Errorf("SaveCheckpoint after it = %v, want ErrLeaseLost", err)
			}
			if !errors.Is(context.Cause(ctx), worker.ErrLeaseLost) {
				t.Errorf("cause = %v, want ErrLeaseLost", context.Cause(ctx))
			}
			return ctx.Err()
		})
		if n := f.state().reportCalls; n != 0 {
			t.Errorf("%d reports, want none", n)
		}
	})
}

// No server answers: a handler that waits for its checkpoint is told when the lease is over,
// whatever context it waits with.
func TestCheckpoint_NoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = hang
		_ = handled(t, f, func(ctx context.Context, job *rawJob) error {
			begun := time.Now()
			err := job.SaveCheckpoint(context.WithoutCancel(ctx), 1)
			if took := time.Since(begun); !errors.Is(err, worker.ErrLeaseLost) || took != 30*time.Second-margin30 {
				t.Errorf("SaveCheckpoint = %v after %v, want ErrLeaseLost after 29.5 s", err, took)
			}
			return ctx.Err()
		})
	})
}

// One checkpoint is on the way at a time, and none after a failure until the lease is safe: an
// older one never arrives after a newer one, and what is heavy costs no lease.
func TestCheckpoint_RenewingComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRegister = func(_ int, _ *leaseholdv1.RegisterWorkerRequest, resp *leaseholdv1.RegisterWorkerResponse) error {
			resp.MaxLeaseDuration = durationpb.New(9 * time.Second) // a call may outlast the next renewal
			return nil
		}
		carrying := 0
		f.onRenew = func(ctx context.Context, _ int, req *leaseholdv1.BatchRenewLeasesRequest) error {
			if req.GetRenewals()[0].GetCheckpoint() == nil {
				return nil
			}
			f.mu.Lock()
			carrying++
			if carrying > 1 {
				t.Errorf("%d renewals with a checkpoint at a time", carrying)
			}
			f.mu.Unlock()
			<-ctx.Done()
			f.mu.Lock()
			carrying--
			f.mu.Unlock()
			return ctx.Err()
		}
		err := handled(t, f, func(ctx context.Context, job *rawJob) error {
			for n := range 120 {
				limited, cancel := context.WithTimeout(ctx, time.Second)
				err := job.SaveCheckpoint(limited, n)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					return err
				}
			}
			return worker.Release("done", 0)
		})
		if errors.Is(err, worker.ErrLeaseLost) {
			t.Error(err)
		}
		if r := f.state().reports; len(r) != 1 || r[0].GetCheckpoint().GetJson() != "119" {
			t.Errorf("reports = %v, want the last checkpoint with it", r)
		}
	})
}

// Heavy checkpoints do not share a call, so that it stays below the limits of messages.
func TestCheckpoint_HeavyOnesGoAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Slots = 20
		w := worker.New(cfg)
		worker.HandleRaw(w, "x", func(ctx context.Context, job *rawJob) (*payload, error) {
			return nil, job.SaveCheckpoint(ctx, strings.Repeat("x", 900<<10))
		})
		s := start(t, w)
		synctest.Wait()
		for range 20 {
			f.enqueue(lease("x", "1"))
		}
		time.Sleep(time.Minute)
		ok := 0
		for _, r := range f.state().reports {
			if r.GetSucceeded() != nil {
				ok++
			}
		}
		if ok != 20 {
			t.Errorf("%d of 20 checkpoints were saved", ok)
		}
		s.mustStop(t)
	})
}

// When the grace is over what handlers left travels with what is handed back, also that of
// one which is deaf to its context.
func TestCheckpoint_HandedBackAtTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "hears", func(ctx context.Context, job *rawJob) (*payload, error) {
			<-ctx.Done()
			return nil, errors.Join(job.SetCheckpoint("heard"), ctx.Err())
		})
		worker.HandleRaw(w, "deaf", func(_ context.Context, job *rawJob) (*payload, error) {
			time.Sleep(5 * time.Second)
			err := job.SetCheckpoint("deaf")
			time.Sleep(time.Hour)
			return nil, err
		})
		s := start(t, w)
		f.enqueue(lease("hears", "1"), lease("deaf", "1"))
		synctest.Wait()
		s.mustStop(t)
		got := map[string]bool{}
		for _, r := range f.state().reports {
			if r.GetReleased() != nil {
				got[r.GetCheckpoint().GetJson()] = true
			}
		}
		for _, r := range noted(f) { // a renewal may have taken it before
			got[r.GetCheckpoint().GetJson()] = true
		}
		if !got[`"heard"`] || !got[`"deaf"`] || len(f.state().reports) != 2 {
			t.Errorf("reports = %v", f.state().reports)
		}
		time.Sleep(2 * time.Hour)
	})
}
