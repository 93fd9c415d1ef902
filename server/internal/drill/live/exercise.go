package live

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	core "github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/history"
)

// exercise is one run of a drill, in a namespace of its own.
type exercise struct {
	*stage
	drill     drill
	namespace string
	recorder  *history.Recorder // of the clients in this process
	load      *load
	conns     []*grpc.ClientConn
	began     time.Time
	took      time.Duration

	faults     int
	slowest    time.Duration // until work went on
	notes      []string
	clockMoved bool
	gone       *lostMoments // what an asynchronous failover may have lost
	later      []func(context.Context) error
	spent      bool // nobody else can use the stage

	err error // what did not go as it should
}

func now() int64 { return history.Now() }

// perform runs a drill under load, and waits until all that was accepted has ended.
func (s *stage) perform(ctx context.Context, d drill) *exercise {
	x := &exercise{
		stage: s, drill: d, recorder: &history.Recorder{}, began: time.Now(), // monotonic
		namespace: "drill-" + d.name + "-" + strings.ReplaceAll(uuid.NewString()[:8], "-", ""),
	}
	x.load = &load{x: x, cfg: d.load}
	if d.limit == 0 {
		d.limit = drillLimit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.limit, fmt.Errorf("not done after %s", d.limit))
	defer cancel()
	x.err = x.play(ctx)
	if x.err == nil {
		x.err = x.settle(ctx)
	}
	if x.err != nil {
		cancel() // The producers ask for ever.
	}
	if err := x.load.end(); x.err == nil {
		x.err = err
	}
	for _, conn := range x.conns {
		_ = conn.Close() // It cannot fail but for a second time.
	}
	if err := s.examine(); x.err == nil {
		x.err = err
	}
	x.took = time.Since(x.began)
	return x
}

const (
	drillLimit = 5 * time.Minute
	atLeast    = 3 * time.Second
)

func (x *exercise) play(ctx context.Context) error {
	if err := x.load.start(ctx); err != nil {
		return err
	}
	if _, err := x.load.goesOn(ctx, now(), goOnLimit); err != nil {
		return fmt.Errorf("before any fault: %w", err)
	}
	began := time.Now() // monotonic
	if err := x.drill.run(ctx, x); err != nil {
		return err
	}
	pause(ctx, atLeast-time.Since(began)) // Some work follows a fault that was over soon.
	return nil
}

// settle waits until everything that was accepted has ended, as long as some of it goes on ending.
func (x *exercise) settle(ctx context.Context) error {
	x.load.stopProducing()
	const open = `SELECT count(*) FROM executions WHERE namespace = $1 AND ended_at IS NULL`
	for left := int64(math.MaxInt64); ; {
		fewer := func(n int64) bool { return n < left || n == 0 }
		if err := x.await(ctx, settleLimit, "ended more of what was accepted", fewer, open, x.namespace); err != nil {
			return err
		}
		n, err := x.number(ctx, open, x.namespace)
		if err == nil && n == 0 {
			return nil
		}
		if err == nil {
			left = min(left, n)
		}
	}
}

// fault counts what was done to the installation.
func (x *exercise) fault() { x.faults++ }

// recovered keeps the longest time until work went on.
func (x *exercise) recovered(took time.Duration) { x.slowest = max(x.slowest, took) }

// goesOn waits until work goes on after an instant, and keeps how long that took.
func (x *exercise) goesOn(ctx context.Context, instant int64, when string) error {
	took, err := x.load.goesOn(ctx, instant, goOnLimit)
	if err != nil {
		return fmt.Errorf("%s: %w", when, err)
	}
	x.recovered(took)
	return nil
}

// note adds something to the drill's row.
func (x *exercise) note(format string, args ...any) {
	x.notes = append(x.notes, fmt.Sprintf(format, args...))
}

// afterwards has something looked at when the drills on this stage are over.
func (x *exercise) afterwards(look func(context.Context) error) { x.later = append(x.later, look) }

// client calls one replica, recorded under a name.
func (x *exercise) client(i int, name string) (*core.Client, error) {
	conn, err := grpc.NewClient("passthrough:///"+x.replicas[i].addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(x.recorder.Unary(name)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", x.replicas[i].name, err)
	}
	x.conns = append(x.conns, conn)
	return &core.Client{
		Executions: leaseholdv1.NewExecutionServiceClient(conn), Workers: leaseholdv1.NewWorkerServiceClient(conn),
		Operators: leaseholdv1.NewOperatorServiceClient(conn),
	}, nil
}
