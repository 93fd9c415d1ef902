package worker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// authority is the server's side of one step's lease: it is granted anew the moment that it
// runs out, with no sweep in between to be lenient.
type authority struct {
	mu      sync.Mutex
	version int64
	until   time.Time // zero while it waits to be granted
	grants  int
}

func (a *authority) grant(l *leaseholdv1.Lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.grants++
	a.version, a.until = l.GetLeaseVersion(), time.Now().Add(l.GetLeaseDuration().AsDuration())
}

func (a *authority) renew(req *leaseholdv1.RenewLeaseRequest, _ *leaseholdv1.RenewLeaseResponse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if req.GetLeaseVersion() != a.version || !time.Now().Before(a.until) {
		return refuse(codes.FailedPrecondition, "LEASE_EXPIRED")
	}
	a.until = time.Now().Add(req.GetLeaseDuration().AsDuration())
	return nil
}

// over reports whether the lease has run out, and if so marks it as waiting.
func (a *authority) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until.IsZero() || time.Now().Before(a.until) {
		return false
	}
	a.until = time.Time{}
	return true
}

// badNetwork delays requests and answers, and loses some of either.
type badNetwork struct {
	late atomic.Int64 // how much later all answers come, in nanoseconds
}

func (n *badNetwork) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	hold := func() {
		switch rand.N(10) {
		case 0:
			<-ctx.Done()
		case 1, 2:
			time.Sleep(rand.N(4 * time.Second))
		default:
			time.Sleep(rand.N(20 * time.Millisecond))
		}
	}
	hold()
	resp, err := handler(context.WithoutCancel(ctx), req) // it is done, whether the caller waits or not
	hold()
	time.Sleep(time.Duration(n.late.Load()))
	return resp, err
}

// Two workers, a network that loses, delays and is cut hundreds of times: at no moment do two
// handlers of the one step run.
func TestLease_NeverTwoHandlersAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cuts = 300
		var a authority
		f := newFake()
		f.onGrant, f.onRenewal = a.grant, a.renew
		var net badNetwork
		p, conn := connect(t, f, grpc.UnaryInterceptor(net.unary))

		var running sync.Mutex // held by the one handler
		ran := 0
		handle := func(ctx context.Context, _ *rawJob) (*payload, error) {
			if !running.TryLock() {
				t.Error("two handlers of one step run at the same time")
				return nil, errors.New("two owners")
			}
			ran++
			<-ctx.Done()
			running.Unlock()
			return nil, ctx.Err()
		}
		var workers []*started
		for range 2 {
			cfg := config(conn)
			cfg.LeaseDuration, cfg.WaitTimeout = 3*time.Second, 2*time.Second
			w := worker.New(cfg)
			worker.HandleRaw(w, "x", handle)
			workers = append(workers, start(t, w))
		}
		grantNext := func(version int64) {
			l := lease("x", "1")
			l.LeaseVersion, l.LeaseDuration = version, durationpb.New(3*time.Second)
			f.enqueue(l)
		}
		version := int64(1)
		grantNext(version)
		nextCut, mend := time.Now(), time.Time{}
		for n := 0; n < cuts; {
			time.Sleep(time.Millisecond)
			if a.over() {
				version++
				grantNext(version)
			}
			switch now := time.Now(); {
			case !mend.IsZero() && now.After(mend):
				p.up()
				net.late.Store(rand.Int64N(2) * rand.Int64N(int64(2500*time.Millisecond)))
				mend, nextCut = time.Time{}, now.Add(rand.N(8*time.Second))
			case mend.IsZero() && now.After(nextCut):
				n++
				p.down()
				mend = now.Add(rand.N(6 * time.Second)) // the lease has 3
			}
		}
		p.up()
		for _, w := range workers {
			w.mustStop(t)
		}
		time.Sleep(time.Minute) // calls that the network still holds
		a.mu.Lock()
		defer a.mu.Unlock()
		if ran < 20 {
			t.Errorf("%d handlers ran of %d grants, too few to tell anything", ran, a.grants)
		}
		t.Logf("%d grants, %d handlers ran", a.grants, ran)
	})
}
