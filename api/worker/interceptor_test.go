package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/leasehold/leasehold/api/worker"
)

type userKey struct{}

// Interceptors stand around the handler in order, may change all that passes through them, and
// see a panic go by.
func TestInterceptors_AroundTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		note := func(name string) worker.Interceptor {
			return func(ctx context.Context, a *worker.Attempt, next worker.Handler) (out *payload, err error) {
				seen = append(seen, name+" "+a.Capability())
				defer func() {
					if v := recover(); v != nil {
						seen = append(seen, name+" panic")
						panic(v)
					}
				}()
				return next(context.WithValue(ctx, userKey{}, name), a)
			}
		}
		f := newFake()
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Slots = 1
		cfg.Interceptors = []worker.Interceptor{note("outer"), note("inner"),
			func(ctx context.Context, a *worker.Attempt, next worker.Handler) (*payload, error) {
				if a.StepName() == "stopped" {
					return nil, worker.Permanent(errors.New("not today"))
				}
				return next(ctx, a)
			}}
		w := worker.New(cfg)
		worker.HandleRaw(w, "x", func(ctx context.Context, job *rawJob) (*payload, error) {
			if job.StepName() == "panics" {
				panic("boom")
			}
			return jsonPayload(`"` + ctx.Value(userKey{}).(string) + `"`), nil
		})
		s := start(t, w)
		for _, name := range []string{"runs", "stopped", "panics"} {
			l := lease("x", "1")
			l.StepName = name
			f.enqueue(l)
		}
		synctest.Wait()
		s.mustStop(t)
		r := f.state().reports
		if len(r) != 3 || r[0].GetSucceeded().GetOutput().GetJson() != `"inner"` || !r[1].GetFailed().GetFailure().GetNonRetryable() ||
			r[2].GetFailed().GetFailure().GetType() != worker.TypePanic {
			t.Errorf("reports = %v", r)
		}
		if got, want := strings.Join(seen, ","), "outer x,inner x,outer x,inner x,outer x,inner x,inner panic,outer panic"; got != want {
			t.Errorf("interceptors saw %s, want %s", got, want)
		}
	})
}
