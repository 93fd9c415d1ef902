package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// The ports that the store implements.
var (
	_ scheduler.EnqueueStore  = (*Store)(nil)
	_ scheduler.LeaseStore    = (*Store)(nil)
	_ scheduler.DispatchStore = (*Store)(nil)
	_ scheduler.DeliveryStore = (*Store)(nil)
	_ scheduler.SessionStore  = (*Store)(nil)
	_ scheduler.ControlStore  = (*Store)(nil)
	_ scheduler.QueryStore    = (*Store)(nil)
	_ scheduler.SweepStore    = (*Store)(nil)
	_ scheduler.WatchStore    = (*Store)(nil)

	_ scheduler.SteeringStore     = (*Store)(nil)
	_ scheduler.InterventionStore = (*Store)(nil)
	_ scheduler.FleetStore        = (*Store)(nil)
)

// Config says where the database is and what is written.
type Config struct {
	URL      string // of PostgreSQL 15 or later
	MaxConns int    // of the pool; default 10. LISTEN has a connection of its own beside it
	// Epoch stands for the WAL's timeline in lease versions where pg_walfile_name is missing;
	// 0: the timeline is asked for. It must grow with each promotion of a standby.
	Epoch  int64
	Events []task.EventType // written to the outbox; none: no rows
	// SessionTimeout is how long a worker counts as capacity after its last sign of life; default 90 s.
	SessionTimeout time.Duration
	Logger         *slog.Logger
	Observer       Observer // none: nobody hears
	Tracer         Tracer   // none: no spans
	// AroundCommit is called right before a commit is sent, and right after its answer came: for
	// tests that end the process there.
	AroundCommit func(transaction string, done bool)
}

// Store keeps everything in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	reads    *dbsqlc.Queries
	queries  chan struct{} // places for callers' reads: the rest of the pool is for the work
	log      *slog.Logger
	epoch    int64
	selected map[task.EventType]bool
	observer Observer
	tracer   Tracer
	commits  func(transaction string, done bool)

	sessionTimeout time.Duration
	frontiers      frontiers
	timers         timerFrontier
	granted        grantCounts

	smallLeases, leasesOfWorker int64 // bytes; see sweepWork

	capabilities sync.Map // capabilityKey → true: those whose row was seen
	remembered   atomic.Int64
}

const (
	defaultMaxConns       = 10
	defaultSessionTimeout = 90 * time.Second
)

// Open connects. It does not wait for the database to be there: calls fail with
// *scheduler.UnavailableError until it is.
func Open(ctx context.Context, c Config) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("database url: %w", err)
	}
	if err := checkMode(cfg.ConnConfig.DefaultQueryExecMode); err != nil {
		return nil, err
	}
	sessionSettings(cfg.ConnConfig)
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		registerIDs(conn)
		return nil
	}
	cfg.MaxConns = defaultMaxConns
	if c.MaxConns > 0 {
		cfg.MaxConns = int32(min(c.MaxConns, 10_000))
	}
	cfg.MaxConnLifetime = 30 * time.Minute
	cfg.MaxConnLifetimeJitter = 5 * time.Minute
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	s := &Store{
		pool: pool, reads: dbsqlc.New(pool), log: c.Logger, epoch: c.Epoch, selected: map[task.EventType]bool{},
		queries: make(chan struct{}, max(int(cfg.MaxConns)/3, 1)), observer: c.Observer, tracer: c.Tracer, sessionTimeout: defaultSessionTimeout,
		commits: c.AroundCommit, smallLeases: defaultSmallLeases, leasesOfWorker: defaultLeasesOfWorker,
	}
	if s.commits == nil {
		s.commits = func(string, bool) {}
	}
	if s.observer == nil {
		s.observer = nobody{}
	}
	if c.SessionTimeout > 0 {
		s.sessionTimeout = c.SessionTimeout
	}
	if s.tracer == nil {
		s.tracer = untraced{}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, t := range c.Events {
		s.selected[t] = true
	}
	return s, nil
}

// Close gives the connections back.
func (s *Store) Close() { s.pool.Close() }

// PoolStat tells how the pool is used.
func (s *Store) PoolStat() *pgxpool.Stat { return s.pool.Stat() }

// sessionSettings are those of every session: a replica that freezes in the middle of a
// transaction must not stop the others, and a dead peer must be noticed.
//
// The planner's alternatives to walking an index are switched off: every statement here has an
// index that it is meant for, and a plan that was cached while a table was small or its
// statistics stale would scan it for ever. So there is nothing to choose by the parameters either:
// each statement is planned once a session. Left to itself PostgreSQL planned most of them at every
// call, which took three times as long as running them for one execution at a time.
func sessionSettings(c *pgx.ConnConfig) {
	maps.Copy(c.RuntimeParams, map[string]string{
		"application_name":                    "leasehold",
		"idle_in_transaction_session_timeout": "5s",
		"lock_timeout":                        "2s",
		"statement_timeout":                   "10s",
		"tcp_keepalives_idle":                 "10",
		"tcp_keepalives_interval":             "5",
		"tcp_keepalives_count":                "3",
		"tcp_user_timeout":                    "20s",
		"default_transaction_isolation":       "read committed",
		"timezone":                            "UTC",
		"jit":                                 "off",
		"plan_cache_mode":                     "force_generic_plan",
		"enable_seqscan":                      "off",
		"enable_hashjoin":                     "off",
		"enable_mergejoin":                    "off",
		"enable_bitmapscan":                   "off",
		"max_parallel_workers_per_gather":     "0",
	})
	c.DialFunc = dialer().DialContext
	c.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			conn.CustomData()[warnedKey] = n.Message
		}
	}
}

type capabilityKey struct{ namespace, name string }

// mostRemembered is how many capabilities are known without a look.
const mostRemembered = 100_000

// makeCapabilities makes the rows of capabilities that are new, in a statement of its own: an
// enqueue or registration never waits for another's with this row in hand. Those that were
// seen before are not looked at again; whoever relies on one notices when it is gone.
func (s *Store) makeCapabilities(ctx context.Context, wanted map[capabilityKey]bool) error {
	var p dbsqlc.InsertCapabilitiesParams
	for k := range wanted {
		if _, seen := s.capabilities.Load(k); !seen {
			p.Namespaces = append(p.Namespaces, k.namespace)
			p.Names = append(p.Names, k.name)
		}
	}
	if len(p.Names) == 0 {
		return nil
	}
	err := s.tx(ctx, "make capabilities", func(ctx context.Context, t *txn) error {
		if err := t.roomForCapabilities(ctx, p); err != nil {
			return err
		}
		return t.q.InsertCapabilities(ctx, p)
	})
	if err != nil {
		return err
	}
	if s.remembered.Add(int64(len(p.Names))) > mostRemembered {
		s.capabilities.Clear() // names are cheap to make up, and this is a shortcut only
		s.remembered.Store(0)
	}
	for k := range wanted {
		s.capabilities.Store(k, true)
	}
	return nil
}

func newID() uuid.UUID {
	id, err := uuid.NewV7() // for the locality of inserts only, never for order
	if err != nil {
		return uuid.New()
	}
	return id
}
