package memstore

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// The ports that the store implements.
var (
	_ scheduler.Store = (*Store)(nil)
	_ outbox.Source   = (*Outbox)(nil)
)

// Fault is what befalls a commit.
type Fault int

// The faults.
const (
	NoFault     Fault = iota
	Lost              // nothing is committed, and the caller is told that the store is away
	Unconfirmed       // it is committed, and the caller is told that the store is away
)

// Config says what is written and what the store's surroundings are like. Zero values are usable.
type Config struct {
	Events []task.EventType               // written to the outbox; none: none are
	Now    func() time.Time               // none: a clock of the store's own, which Advance moves
	Chance func() float64                 // of jitter, from [0, 1); none: random
	Fault  func(transaction string) Fault // is asked at each commit; none: none
}

// Store keeps everything in memory. It is safe for concurrent use.
type Store struct {
	c        Config
	selected map[task.EventType]bool

	mu      sync.Mutex
	clock   time.Time
	version int64 // of the last lease: it grows even if its transaction does not commit

	executions   map[uuid.UUID]execution
	keys         map[keyOf]uuid.UUID
	steps        map[uuid.UUID]step
	attempts     map[uuid.UUID]attempt
	leases       map[uuid.UUID]lease // by attempt; there exactly while it is live
	requests     map[requestKey]request
	timers       map[timerKey]time.Time
	entries      map[uuid.UUID][]scheduler.EntryView
	workers      map[uuid.UUID]worker
	names        map[keyOf]uuid.UUID
	sessions     map[uuid.UUID]session
	answered     map[answer]time.Time
	drains       map[drain]bool
	capabilities map[scheduler.CapabilityKey]capability
	events       map[eventKey]event
	heads        map[uuid.UUID]head
	sweptAt      time.Time // zero: never
}

// Epoch is where a clock of the store's own begins.
func Epoch() time.Time { return time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC) }

// New makes an empty store.
func New(c Config) *Store {
	if c.Chance == nil {
		c.Chance = rand.Float64
	}
	s := &Store{
		c: c, selected: map[task.EventType]bool{}, clock: Epoch(),
		executions: map[uuid.UUID]execution{}, keys: map[keyOf]uuid.UUID{}, steps: map[uuid.UUID]step{},
		attempts: map[uuid.UUID]attempt{}, leases: map[uuid.UUID]lease{}, requests: map[requestKey]request{},
		timers: map[timerKey]time.Time{}, entries: map[uuid.UUID][]scheduler.EntryView{},
		workers: map[uuid.UUID]worker{}, names: map[keyOf]uuid.UUID{}, sessions: map[uuid.UUID]session{},
		answered: map[answer]time.Time{}, drains: map[drain]bool{}, capabilities: map[scheduler.CapabilityKey]capability{},
		events: map[eventKey]event{}, heads: map[uuid.UUID]head{},
	}
	for _, t := range c.Events {
		s.selected[t] = true
	}
	return s
}

// Advance moves the store's own clock; back, too.
func (s *Store) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = s.clock.Add(d)
}

// now is the clock, in microseconds as PostgreSQL's.
func (s *Store) now() time.Time {
	if s.c.Now != nil {
		return s.c.Now().UTC().Truncate(time.Microsecond)
	}
	return s.clock
}

func (s *Store) selects(t task.EventType) bool { return s.selected[t] }

// keyOf is a key or name within a namespace.
type keyOf struct{ namespace, key string }

type execution struct {
	task.ExecutionData
	key      string // empty: none
	hash     []byte
	priority int
	labels   map[string]string
	trace    map[string]string
	steps    []uuid.UUID // in the order of their declaration
	edges    []task.Edge
}

type step struct {
	task.StepData // RUNNING is stored as READY: the live attempt says so
	execution     uuid.UUID
	attempts      []uuid.UUID // by number
	input         *task.Payload
	output        *task.Payload
	checkpoint    *task.Payload
}

type attempt struct {
	task.AttemptData
	progress *float64
	message  string
}

type lease struct {
	attempt   uuid.UUID
	step      uuid.UUID
	execution uuid.UUID
	worker    uuid.UUID
	session   uuid.UUID
	claim     uuid.UUID
	requestID string
	version   int64
	expiresAt time.Time
	capAt     time.Time
	cancelAt  *time.Time // the end of a cancel's grace
	duration  time.Duration
	delivery  int
	renewed   bool
}

// requestKey names a scheduling request, which a dispatcher may have claimed.
type requestKey struct {
	step   uuid.UUID
	number int
}

type request struct {
	task.Request
	claim  uuid.UUID
	claims time.Time // until when it is claimed; zero: it is not
}

type timerKey struct {
	execution uuid.UUID
	kind      task.TimerKind
	step      uuid.UUID // zero: of the execution itself
}

type worker struct {
	scheduler.Registration
	id       uuid.UUID
	session  uuid.UUID // zero: none
	draining bool      // by its own word
	seenAt   time.Time
}

type session struct {
	worker     uuid.UUID
	superseded bool
}

// answer is a poll that was answered with grants.
type answer struct {
	session   uuid.UUID
	requestID string
}

type drain struct {
	namespace string
	kind      scheduler.DrainKind
	value     string
}

type capability struct{ pause *task.Notice }

// eventKey is an event's place: its aggregate is an execution.
type eventKey struct {
	aggregate uuid.UUID
	sequence  int64
}

type event struct {
	outbox.Event
	status      outbox.Status
	claim       uuid.UUID
	availableAt time.Time
}

// head leads the unsettled events of an execution. Behind a DEAD one it is never due.
type head struct {
	next        int64 // the first unsettled one
	dead        bool
	availableAt time.Time
	claim       uuid.UUID
	claims      time.Time // until when it is claimed; zero: it is not
}
