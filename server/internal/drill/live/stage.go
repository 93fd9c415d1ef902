package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold/leasehold/api/consumer"
	"github.com/leasehold/leasehold/server/internal/broker"
	"github.com/leasehold/leasehold/server/internal/devpg"
	core "github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/history"
	"github.com/leasehold/leasehold/server/internal/postgres"
)

const (
	replicaCount  = 3
	sweepInterval = 200 * time.Millisecond
	setUpLimit    = 90 * time.Second
	postgresStop  = 5 * time.Second
	stream        = "DRILL"
)

// stage is an installation that drills run on, one after the other.
type stage struct {
	cfg    Config
	scene  scene
	folder string // logs of the processes, histories, and NATS's files

	primary  *devpg.Server // nil: the database is the user's own
	standby  *devpg.Server // if the scene has one
	url      string        // of the database, past the proxies
	db       *pgxpool.Pool // our own look at the tables
	broker   *broker.Broker
	reading  jetstream.ConsumeContext
	replicas []*replica

	mu        sync.Mutex
	consumers map[string]*history.Recorder // by namespace: what arrived of its events
}

// newStage starts all parts. What it started until an error, tearDown ends.
func newStage(ctx context.Context, cfg Config, scene scene) (*stage, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, setUpLimit, fmt.Errorf("the installation does not stand after %s", setUpLimit))
	defer cancel()
	s := &stage{cfg: cfg, scene: scene, consumers: map[string]*history.Recorder{}}
	for _, step := range []func(context.Context) error{s.startDatabase, s.prepareDatabase, s.startBroker, s.startReplicas} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, s.tearDown())
		}
	}
	return s, nil
}

func (s *stage) startDatabase(ctx context.Context) (err error) {
	if s.folder, err = os.MkdirTemp("", "leasehold-drill-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if s.cfg.DatabaseURL != "" {
		s.url = s.cfg.DatabaseURL
		return nil
	}
	binaries, err := devpg.FindOrInstall(ctx, s.cfg.Err)
	if err != nil {
		return err
	}
	if s.primary, err = devpg.Start(ctx, devpg.Config{Ephemeral: true, Binaries: binaries}); err != nil {
		return err
	}
	if s.url = s.primary.URL(); !s.scene.standby {
		return nil
	}
	if s.standby, err = devpg.Start(ctx, devpg.Config{Ephemeral: true, StandbyOf: s.primary}); err != nil {
		return err
	}
	s.url, err = s.hostsURL()
	return err
}

// servers are the hosts of a private database.
func (s *stage) servers() []*devpg.Server {
	if s.standby == nil {
		return []*devpg.Server{s.primary}
	}
	return []*devpg.Server{s.primary, s.standby}
}

func (s *stage) hostsURL() (string, error) {
	u, err := url.Parse(s.primary.URL())
	if err != nil {
		return "", err
	}
	other, err := url.Parse(s.standby.URL())
	if err != nil {
		return "", err
	}
	return multiHost(s.primary.URL(), u.User, []string{u.Host, other.Host})
}

// prepareDatabase brings the schema, and the clock that can be set if the scene has one.
func (s *stage) prepareDatabase(ctx context.Context) (err error) {
	if s.db, err = pgxpool.New(ctx, s.url); err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	if s.primary == nil {
		if err := refuseOthersWork(ctx, s.db); err != nil {
			return err
		}
	}
	if err := postgres.Migrate(ctx, s.url, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if s.scene.clock {
		return core.MakeClock(ctx, s.db)
	}
	return nil
}

func (s *stage) startBroker(ctx context.Context) (err error) {
	if s.broker, err = broker.Start(s.folder); err != nil {
		return err
	}
	taken := jetstream.StreamConfig{Name: stream, Subjects: []string{"leasehold.>"}}
	if _, err := s.broker.JetStream.CreateStream(ctx, taken); err != nil {
		return fmt.Errorf("make a stream: %w", err)
	}
	reader, err := s.broker.JetStream.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return fmt.Errorf("follow the stream: %w", err)
	}
	if s.reading, err = reader.Consume(func(m jetstream.Msg) { s.arrived(m.Data()) }); err != nil {
		return fmt.Errorf("follow the stream: %w", err)
	}
	return nil
}

// arrived notes an event with the drill that it is of.
func (s *stage) arrived(body []byte) {
	event, err := consumer.ParseEvent(body)
	if err != nil {
		return // It is missed in the verdict.
	}
	s.consumerOf(event.Namespace).Delivered(history.Delivery{
		Client: "consumer", ID: event.ID, Type: event.Type, Execution: event.ExecutionID, Sequence: event.Sequence, Namespace: event.Namespace,
	})
}

func (s *stage) consumerOf(namespace string) *history.Recorder {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.consumers[namespace]
	if r == nil {
		r = &history.Recorder{}
		r.Consumes()
		s.consumers[namespace] = r
	}
	return r
}

func (s *stage) startReplicas(ctx context.Context) error {
	for i := range replicaCount {
		r, err := s.newReplica(ctx, i)
		if err != nil {
			return err
		}
		s.replicas = append(s.replicas, r)
	}
	return s.startAll(ctx)
}

// startAll starts all replicas, again where they have ended.
func (s *stage) startAll(ctx context.Context, flags ...string) error {
	for _, r := range s.replicas {
		if err := r.launch(flags...); err != nil {
			return err
		}
	}
	for _, r := range s.replicas {
		if err := r.awaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stopAll ends all replicas in good order.
func (s *stage) stopAll() {
	var stopping sync.WaitGroup
	for _, r := range s.replicas {
		if r.process != nil {
			stopping.Go(r.process.Stop)
		}
	}
	stopping.Wait()
}

// addresses are those of the replicas, that with the index first.
func (s *stage) addresses(first int) []string {
	list := make([]string, len(s.replicas))
	for i := range list {
		list[i] = s.replicas[(first+i)%len(list)].addr
	}
	return list
}

// examine tells of a process that ended by itself.
func (s *stage) examine() error {
	for _, r := range s.replicas {
		if r.process == nil {
			continue
		}
		select {
		case <-r.process.Exited():
			if err := r.process.ByItself(); err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

// tearDown ends all parts in order: replicas before what they need.
func (s *stage) tearDown() error {
	s.stopAll()
	for _, r := range s.replicas {
		r.close()
	}
	if s.db != nil {
		s.db.Close()
	}
	if s.reading != nil {
		s.reading.Stop()
	}
	if s.broker != nil {
		s.broker.Stop()
	}
	var errs []error
	for _, pg := range []*devpg.Server{s.standby, s.primary} {
		if pg != nil {
			ctx, cancel := context.WithTimeout(context.Background(), postgresStop)
			errs = append(errs, pg.Stop(ctx))
			cancel()
		}
	}
	if s.folder != "" && !s.cfg.KeepLogs {
		errs = append(errs, os.RemoveAll(s.folder))
	}
	return errors.Join(errs...)
}

// number is the one number that a query returns.
func (s *stage) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	if err := s.db.QueryRow(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("look at the tables: %w", err)
	}
	return n, nil
}

// clock is PostgreSQL's.
func (s *stage) clock(ctx context.Context) (at time.Time, err error) {
	if err := s.db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
		return at, fmt.Errorf("ask for the time: %w", err)
	}
	return at, nil
}

// await looks until a number is what is hoped for. A database that is away is asked again.
func (s *stage) await(ctx context.Context, limit time.Duration, what string, hoped func(n int64) bool, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		n, err := s.number(ctx, query, args...)
		if err == nil && hoped(n) {
			return nil
		}
		if !pause(ctx, lookAgain) {
			if err == nil || strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
				err = fmt.Errorf("it is %d", n)
			}
			return fmt.Errorf("after %s not %s: %w", limit, what, err)
		}
	}
}

const lookAgain = 20 * time.Millisecond // between two looks

func none(n int64) bool { return n == 0 }
func some(n int64) bool { return n > 0 }

// pause lets time pass, and tells whether there is more of it.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
