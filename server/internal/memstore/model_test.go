package memstore_test

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"
)

// The model is what the simulation expects: the rules as the documentation tells them, written
// down a second time and without package task. It knows no database, no batches and no timers;
// what it holds of an execution is compared with the store after each step.

type model struct {
	now        time.Time
	sweptAt    time.Time
	executions []*mExecution // as they were accepted
	byKey      map[string]*mExecution
	attempts   map[uuid.UUID]*mAttempt
	workers    map[string]*mWorker // by name
	answered   map[string]bool     // session and request id
	paused     map[string]bool
	drained    map[string]bool // nodes
	version    int64           // the greatest that was given
}

type mWorker struct {
	id       uuid.UUID
	name     string
	node     string
	slots    int
	session  uuid.UUID // zero: it has left
	draining bool
	request  string
	offers   []string
	past     map[uuid.UUID]bool // sessions that were superseded
}

type mExecution struct {
	id       uuid.UUID
	content  string // what it was accepted with
	failFast bool
	timeout  time.Duration
	grace    time.Duration

	state    string
	round    int
	due      time.Time
	stopping bool
	stopAt   time.Time // the end of the grace; zero: none
	deadline time.Time // zero: none
	steps    []*mStep
	retries  map[string]int // request id → the round that it opened

	// Within one transaction.
	ending    bool
	cancelAll bool
	closed    []*mStep
	barred    []*mStep // steps below which everything is skipped
}

type mStep struct {
	id         uuid.UUID
	name       string
	capability string
	node       string
	priority   int
	most       int // attempts that count
	first      time.Duration
	delay      time.Duration
	toStart    time.Duration
	toClose    time.Duration
	inAll      time.Duration
	parents    []*mStep
	children   []*mStep

	state   string
	due     time.Time // while READY and wanted
	wanted  bool      // a scheduling request is there
	opened  time.Time // zero: not yet in this round
	number  int
	counted int
	failed  int
	lost    int
	freed   int
	live    *mAttempt
	claim   uuid.UUID
	claimed time.Time // until then

	startTimer, closeTimer time.Time // zero: none
}

type mAttempt struct {
	id       uuid.UUID
	step     *mStep
	of       *mExecution
	number   int
	version  int64
	worker   *mWorker
	session  uuid.UUID
	request  string
	state    string
	reason   string // of an end that the service decided
	outcome  string // of an end that was reported
	expires  time.Time
	limit    time.Time
	stopAt   time.Time // zero: none
	slow     time.Time // when start_to_close comes
	duration time.Duration
	delivery int
	renewed  bool
}

func newModel(now time.Time) *model {
	return &model{
		now: now, byKey: map[string]*mExecution{}, attempts: map[uuid.UUID]*mAttempt{}, workers: map[string]*mWorker{},
		answered: map[string]bool{}, paused: map[string]bool{}, drained: map[string]bool{},
	}
}

func (e *mExecution) ended() bool {
	return e.state == "SUCCEEDED" || e.state == "FAILED" || e.state == "CANCELED"
}

func (e *mExecution) grants() bool {
	return !e.stopping && (e.state == "CREATED" || e.state == "QUEUED" || e.state == "RUNNING")
}

func (s *mStep) ended() bool {
	return s.state == "SUCCEEDED" || s.state == "FAILED" || s.state == "CANCELED" || s.state == "SKIPPED"
}

// waits counts the parents that have not succeeded.
func (s *mStep) waits() (n int) {
	for _, p := range s.parents {
		if p.state != "SUCCEEDED" {
			n++
		}
	}
	return n
}

func passed(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// closesAt is when schedule_to_close comes, or zero.
func (s *mStep) closesAt() time.Time {
	if s.inAll == 0 || s.opened.IsZero() {
		return time.Time{}
	}
	return s.opened.Add(s.inAll)
}

// open makes a step READY for the first time in a round.
func (s *mStep) open(from time.Time) {
	s.opened = from.Add(s.delay)
	s.wait(s.opened)
}

// wait makes it READY, with the timers over its wait.
func (s *mStep) wait(due time.Time) {
	s.state, s.due, s.wanted, s.claim, s.claimed = "READY", due, true, uuid.Nil, time.Time{}
	if s.toStart > 0 {
		s.startTimer = due.Add(s.toStart)
	}
	if at := s.closesAt(); !at.IsZero() {
		s.closeTimer = at
	}
}

func (s *mStep) backoff(n int) time.Duration {
	wait := s.first
	for range n - 1 {
		wait *= 2
	}
	return min(wait, longestBackoff)
}

// end ends the live attempt of a step, and decides what follows. asked is how long the worker
// wants the next one to wait.
func (m *model) end(a *mAttempt, state, reason string, asked time.Duration, final bool) {
	s, e := a.step, a.of
	a.state, a.reason = state, reason
	s.live = nil
	var wait time.Duration
	switch state {
	case "SUCCEEDED":
		s.counted++
		m.close(e, s, "SUCCEEDED")
		return
	case "FAILED", "TIMED_OUT":
		s.counted, s.failed, s.lost, s.freed = s.counted+1, s.failed+1, 0, 0
		wait = s.backoff(s.failed)
	case "LOST":
		s.counted, s.lost, s.freed = s.counted+1, s.lost+1, 0
		if s.lost >= 3 {
			wait = s.backoff(s.lost - 2)
		}
	case "RELEASED":
		s.freed, s.lost, wait = s.freed+1, 0, asked
		if s.freed >= 10 {
			wait = max(wait, s.backoff(s.freed-9))
		}
	}
	counts := state != "RELEASED" && state != "CANCELED"
	switch {
	case e.stopping:
		m.close(e, s, "CANCELED")
	case final, counts && s.counted >= s.most, passed(s.closesAt(), m.now.Add(wait)):
		m.close(e, s, "FAILED")
	default:
		s.wait(m.now.Add(wait))
	}
}

// close ends a step for this round.
func (m *model) close(e *mExecution, s *mStep, state string) {
	s.state, s.wanted = state, false
	if state == "FAILED" && e.failFast && !e.stopping && !e.ending && e.open() > 0 {
		e.barred = append(e.barred, s)
		e.cancelAll = true
		m.stop(e)
		return
	}
	if e.stopping {
		return
	}
	switch state {
	case "SUCCEEDED":
		e.closed = append(e.closed, s)
	case "FAILED":
		e.barred = append(e.barred, s)
	}
}

func (e *mExecution) open() (n int) {
	for _, s := range e.steps {
		if !s.ended() {
			n++
		}
	}
	return n
}

// stop asks live attempts to end within the grace.
func (m *model) stop(e *mExecution) {
	e.stopping, e.stopAt = true, m.now.Add(e.grace)
	for _, s := range e.steps {
		if s.live != nil {
			s.live.stopAt = e.stopAt
			s.live.expires = earlier(s.live.expires, e.stopAt)
		}
	}
}

// cancelWaiting cancels every step that waits.
func (m *model) cancelWaiting(e *mExecution) {
	for _, s := range e.steps {
		if s.state == "READY" || s.state == "BLOCKED" {
			m.close(e, s, "CANCELED")
		}
	}
}

// settle draws the consequences of a transaction within the graph.
func (m *model) settle(e *mExecution) {
	for _, s := range e.barred {
		m.skipBelow(e, s)
	}
	if e.cancelAll {
		m.cancelWaiting(e)
	}
	for _, s := range e.closed {
		for _, child := range s.children {
			if child.state == "BLOCKED" && child.waits() == 0 {
				child.open(m.now)
			}
		}
	}
	m.closeExecution(e)
	e.ending, e.cancelAll, e.closed, e.barred = false, false, nil, nil
}

func (m *model) skipBelow(e *mExecution, s *mStep) {
	for _, child := range s.children {
		if child.state == "BLOCKED" {
			m.close(e, child, "SKIPPED")
		}
		m.skipBelow(e, child)
	}
}

func (m *model) closeExecution(e *mExecution) {
	if e.ended() || e.open() > 0 {
		return
	}
	all := true
	for _, s := range e.steps {
		all = all && s.state == "SUCCEEDED"
		s.startTimer, s.closeTimer = time.Time{}, time.Time{}
	}
	switch {
	case e.state == "CANCELING":
		e.state = "CANCELED"
	case all:
		e.state = "SUCCEEDED"
	default:
		e.state = "FAILED"
	}
}

// forget drops what a transaction that decides all by itself would leave to settle.
func (e *mExecution) forget() { e.ending, e.cancelAll, e.closed, e.barred = false, false, nil, nil }

// eligible are the steps that a claim for workers may get, in order.
func (m *model) eligible(rooms map[mGroup]int, limit int) []*mStep {
	var list []*mStep
	for _, e := range m.executions {
		for _, s := range e.steps {
			if s.wanted && !m.paused[s.capability] && passed(s.due, m.now) && !s.claimed.After(m.now) && rooms[s.group()] > 0 {
				list = append(list, s)
			}
		}
	}
	slices.SortFunc(list, func(a, b *mStep) int {
		return cmp.Or(b.priority-a.priority, a.due.Compare(b.due), bytes.Compare(a.id[:], b.id[:]))
	})
	taken := map[mGroup]map[int]int{}
	kept := list[:0]
	for _, s := range list {
		if taken[s.group()] == nil {
			taken[s.group()] = map[int]int{}
		}
		if len(kept) < limit && taken[s.group()][s.priority] < rooms[s.group()] {
			taken[s.group()][s.priority]++
			kept = append(kept, s)
		}
	}
	return kept
}

type mGroup struct{ capability, node string }

func (s *mStep) group() mGroup { return mGroup{s.capability, s.node} }

// free is how many more leases a worker may get.
func (m *model) free(w *mWorker) int {
	if w.session == uuid.Nil || m.drains(w) {
		return 0
	}
	return max(w.slots-m.held(w), 0)
}

func (m *model) drains(w *mWorker) bool { return w.draining || m.drained[w.node] }

func (m *model) held(w *mWorker) (n int) {
	for _, a := range m.live() {
		if a.worker == w {
			n++
		}
	}
	return n
}

// live are the live attempts, in the order of executions and steps.
func (m *model) live() (list []*mAttempt) {
	for _, e := range m.executions {
		for _, s := range e.steps {
			if s.live != nil {
				list = append(list, s.live)
			}
		}
	}
	return list
}
