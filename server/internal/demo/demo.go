package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Config says how large the demo is, and what it is made of.
type Config struct {
	Coupons int       // how many, FewestCoupons to MostCoupons
	Program string    // path of the program `leasehold`
	Out     io.Writer // takes the story and the verdict
	Err     io.Writer // takes what is told of an installation of PostgreSQL
}

// How many coupons there may be: enough for everything to happen in the middle, and not too
// many for the time.
const (
	FewestCoupons = 100
	MostCoupons   = 5000
)

const (
	limit      = 95 * time.Second // of the story, all of it
	countLimit = 10 * time.Second
	look       = 20 * time.Millisecond // between two looks at a table

	campaign = "spring"

	// Sending takes about so long, whatever the number of coupons.
	sendingTime = 8 * time.Second
	// The set time is so long after the tables are made, and so much later for each coupon.
	leadTime   = 2 * time.Second
	leadCoupon = 3 * time.Millisecond

	// Who has to suffer, by index. The sleeper's replica is not the one that dies.
	deadReplica = 0
	deadWorker  = 1
	sleeper     = 5
)

var (
	// ErrFailed is the verdict that not everything came as it should.
	ErrFailed = errors.New("the demo failed")

	errTooLong = fmt.Errorf("not done after %s", limit)
)

// pace is how long a worker takes for a coupon.
func (c Config) pace() time.Duration {
	return (sendingTime * workerCount * slots / time.Duration(c.Coupons)).Round(time.Millisecond)
}

// demo is one run.
type demo struct {
	stage
	coupons []Coupon
	setTime time.Time // by the clock of PostgreSQL
	shop    *shop
	awake   chan struct{} // closed when the sleeper's late success was refused
	calls   int           // to enqueue

	mu    sync.Mutex // guards the story's text
	began time.Time
}

// Run plays the demo, tells it, and judges it; the last line is the verdict. The error is
// ErrFailed unless that is ok.
func Run(ctx context.Context, cfg Config) error {
	d := &demo{stage: stage{cfg: cfg}, awake: make(chan struct{}), began: time.Now()} // monotonic
	playing, cancel := context.WithTimeoutCause(ctx, limit, errTooLong)
	defer cancel()
	err := d.setUp(playing)
	if err == nil {
		err = d.play(playing)
	}
	if playing.Err() != nil {
		err = context.Cause(playing) // It says more than what failed for it.
	}
	var t *tally
	if d.shop != nil && ctx.Err() == nil {
		counting, cancel := context.WithTimeout(ctx, countLimit)
		defer cancel()
		var uncounted error
		t, uncounted = d.count(counting)
		err = errors.Join(err, uncounted)
	}
	failed := err != nil || t == nil || t.failures() != nil
	interrupted := ctx.Err() != nil
	if undone := d.tearDown(failed && !interrupted); undone != nil {
		d.tell("ending it: %v", undone)
	}
	if failed && !interrupted {
		d.tell("logs are in %s", d.folder)
	}
	return conclude(cfg.Out, t, err)
}

// tell adds a line to the story.
func (d *demo) tell(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.cfg.Out, "%5.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// play has everything happen at once: the shop consumes events, somebody watches the
// processes, the sleeper is frozen, and the story goes on until all is done.
func (d *demo) play(ctx context.Context) error {
	d.tell("3 replicas on %s; PostgreSQL %s, NATS JetStream, 6 workers with %d slots each",
		strings.Join(d.addresses, ", "), d.pg.Binaries().Version, slots)
	executions, err := d.client(deadReplica)
	if err != nil {
		return err
	}
	d.shop = &shop{db: d.shopDB, executions: executions, crashEvery: int64(d.cfg.Coupons) / (crashes + 1)}
	acts, ctx := errgroup.WithContext(ctx)
	playing, curtain := context.WithCancel(ctx)
	acts.Go(func() error { return d.watch(playing) })
	acts.Go(func() error { return d.shop.run(playing, d.broker.JetStream, d.tell) })
	acts.Go(func() error { return d.freeze(playing) })
	acts.Go(func() error {
		defer curtain()
		return d.story(playing)
	})
	return acts.Wait()
}

// story is the main thread.
func (d *demo) story(ctx context.Context) error {
	if err := d.ask(ctx); err != nil {
		return err
	}
	if err := d.enqueue(ctx); err != nil {
		return err
	}
	all := int64(len(d.coupons))
	if err := d.await(ctx, d.sent, 1); err != nil {
		return err
	}
	d.tell("the set time has come: workers send")
	if err := d.await(ctx, d.sent, all/10); err != nil {
		return err
	}
	if err := d.replicas[deadReplica].Kill(); err != nil {
		return err
	}
	d.tell("%d are sent; %s is killed (SIGKILL)", all/10, d.replicas[deadReplica].Name)
	text, err := d.workers[deadWorker].Line(ctx)
	if err != nil {
		return err
	}
	if err := d.workers[deadWorker].Kill(); err != nil {
		return err
	}
	d.tell("%s has sent %s and not yet reported it; it is killed (SIGKILL)", d.workers[deadWorker].Name, strings.TrimPrefix(text, delivered+" "))
	if err := d.await(ctx, d.issued, all); err != nil {
		return err
	}
	d.tell("all are issued")
	select {
	case <-d.awake:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return d.settle(ctx)
}

// ask writes down which coupons there are to be, before anything else.
func (d *demo) ask(ctx context.Context) error {
	var customers []string
	for i := range d.cfg.Coupons {
		customers = append(customers, fmt.Sprintf("customer-%04d", i+1))
		d.coupons = append(d.coupons, Coupon{Campaign: campaign, Customer: customers[i]})
	}
	lead := leadTime + time.Duration(len(d.coupons))*leadCoupon
	if _, err := d.shopDB.Exec(ctx, `INSERT INTO asked SELECT $1, unnest($2::text[])`, campaign, customers); err != nil {
		return fmt.Errorf("ask for coupons: %w", err)
	}
	if err := d.shopDB.QueryRow(ctx, `SELECT now() + $1::interval`, lead).Scan(&d.setTime); err != nil {
		return fmt.Errorf("set the time: %w", err)
	}
	d.tell("asked for: %d coupons, each customer one, to be sent %s from now and not before", len(d.coupons), lead)
	return nil
}

// enqueue has two producers ask for all coupons, from both ends and through different replicas.
func (d *demo) enqueue(ctx context.Context) error {
	var created [2]int64
	producers, ctx := errgroup.WithContext(ctx)
	backwards := slices.Clone(d.coupons)
	slices.Reverse(backwards)
	for i, coupons := range [][]Coupon{d.coupons, backwards} {
		executions, err := d.client(i)
		if err != nil {
			return err
		}
		producers.Go(func() (err error) {
			created[i], err = produce(ctx, executions, coupons, d.setTime)
			return err
		})
	}
	if err := producers.Wait(); err != nil {
		return err
	}
	d.calls = len(created) * len(d.coupons)
	d.tell("two producers made %d calls: %d and %d of them created an execution, the others found it there",
		d.calls, created[0], created[1])
	return nil
}

// freeze stops a worker while it holds a lease, until another has done its work,
// and sees it wake up.
func (d *demo) freeze(ctx context.Context) error {
	p := d.workers[sleeper]
	var key, id string
	var version int64
	text, err := p.Line(ctx)
	if err == nil {
		_, err = fmt.Sscanf(text, holding+" %s %s %d", &key, &id, &version)
	}
	if err != nil {
		return fmt.Errorf("freeze %s: %w", p.Name, err)
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	d.tell("%s holds %s with lease version %d; it is frozen (SIGSTOP)", p.Name, key, version)
	done := func(ctx context.Context) (int64, error) {
		answer, err := d.shop.executions.GetExecution(ctx, &leaseholdv1.GetExecutionRequest{ExecutionId: id})
		if err != nil || answer.GetExecution().GetState() != leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED {
			return 0, err
		}
		return 1, nil
	}
	if err := d.await(ctx, done, 1); err != nil {
		return err
	}
	d.tell("another worker has sent %s; %s wakes up (SIGCONT)", key, p.Name)
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	if text, err = p.Line(ctx); err != nil {
		return err
	}
	d.tell("it sends %s all the same: %s", key, strings.TrimPrefix(text, delivered+" "))
	refused := func(ctx context.Context) (int64, error) { return d.lateReports(ctx, id) }
	if err := d.await(ctx, refused, 1); err != nil {
		return err
	}
	d.tell("it reports a success: the server has refused it, and noted so in the timeline")
	close(d.awake)
	return nil
}

// await looks until a number is reached.
func (d *demo) await(ctx context.Context, number func(context.Context) (int64, error), want int64) error {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		n, err := number(ctx)
		if err != nil || n >= want {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *demo) sent(ctx context.Context) (n int64, err error) {
	err = d.mailbox.db.QueryRow(ctx, `SELECT count(*) FROM messages`).Scan(&n)
	return n, err
}

func (d *demo) issued(ctx context.Context) (n int64, err error) {
	err = d.shopDB.QueryRow(ctx, `SELECT count(*) FROM coupons`).Scan(&n)
	return n, err
}

// settle waits until no event is left that could come still: the outbox has none that is not
// settled, and the stream none that the shop has not acknowledged.
func (d *demo) settle(ctx context.Context) error {
	settled := func(ctx context.Context) (int64, error) {
		var open int
		if err := d.server.QueryRow(ctx, `SELECT count(*) FROM outbox_heads`).Scan(&open); err != nil || open > 0 {
			return 0, err
		}
		durable, err := d.broker.JetStream.Consumer(ctx, stream, durableName)
		if err != nil {
			return 0, fmt.Errorf("look at the stream: %w", err)
		}
		state := durable.CachedInfo()
		if state.NumPending > 0 || state.NumAckPending > 0 {
			return 0, nil
		}
		return 1, nil
	}
	if n, err := settled(ctx); err == nil && n == 0 {
		d.tell("events that %s had claimed and did not confirm come again, after 30 s at most", d.replicas[deadReplica].Name)
	}
	if err := d.await(ctx, settled, 1); err != nil {
		return err
	}
	d.tell("every event is published and consumed")
	return nil
}
