package memstore_test

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"
)

// What calls come to in the model. Each returns why it is refused, or "".

const ok = ""

// grant is the grant of an attempt; why tells what becomes of one that is not granted.
func (m *model) grant(s *mStep, e *mExecution, w *mWorker, session, claim, attempt uuid.UUID, request string, d time.Duration) (why string) {
	switch {
	case !s.wanted || s.claim != claim || !s.claimed.After(m.now):
		return "left"
	case m.paused[s.capability]:
		return "left"
	case !e.grants():
		s.wanted = false
		return "dropped"
	case w.session != session || m.free(w) == 0:
		return "left"
	case m.answered[session.String()+request]:
		return "answered"
	case passed(e.deadline, m.now) || passed(s.closesAt(), m.now):
		s.wanted = false
		return "dropped"
	}
	s.number++
	a := &mAttempt{
		id: attempt, step: s, of: e, number: s.number, worker: w, session: session, request: request, state: "LEASED",
		slow: m.now.Add(s.toClose), duration: d, delivery: 1,
	}
	a.limit = earlier(earlier(a.slow, s.closesAt()), e.deadline)
	a.expires = earlier(m.now.Add(d), a.limit)
	s.state, s.live, s.wanted = "RUNNING", a, false
	e.state = "RUNNING"
	m.attempts[attempt] = a
	return ok
}

// late is why a call for an attempt is refused that is not live with that version.
func (m *model) late(a *mAttempt, version int64) string {
	switch {
	case version != a.version:
		return "LEASE_SUPERSEDED"
	case a.outcome != "":
		return "OUTCOME_ALREADY_RECORDED"
	case a.reason == "revoked" || a.reason == "worker_deregistered":
		return "LEASE_REVOKED"
	case a.reason == "session_superseded" || a.worker.session != a.session:
		return "SESSION_SUPERSEDED"
	case a.step.number > a.number:
		return "LEASE_SUPERSEDED"
	case a.of.ended():
		return "EXECUTION_CLOSED"
	default:
		return "LEASE_EXPIRED"
	}
}

func (m *model) renew(attempt uuid.UUID, version int64, session uuid.UUID, d time.Duration) string {
	a := m.attempts[attempt]
	switch {
	case a.state != "LEASED" || version != a.version:
		return m.late(a, version)
	case a.session != session || a.worker.session != session:
		return "SESSION_SUPERSEDED"
	}
	if at := m.now.Add(d); at.After(a.expires) {
		a.expires = at
	}
	a.expires = earlier(earlier(a.expires, a.limit), a.stopAt)
	a.duration, a.renewed = d, true
	return ok
}

// outcome is what a worker says.
type outcome struct {
	state string
	final bool
	wait  time.Duration
}

func (o outcome) String() string {
	return o.state + o.wait.String() + map[bool]string{true: "!"}[o.final]
}

func (m *model) report(attempt uuid.UUID, version int64, o outcome) string {
	a := m.attempts[attempt]
	if a.state != "LEASED" || version != a.version {
		if version == a.version && a.outcome == o.String() {
			return "replayed"
		}
		return m.late(a, version)
	}
	if o.state == "CANCELED" && !a.of.stopping {
		return "CANCEL_NOT_REQUESTED"
	}
	a.outcome = o.String()
	m.end(a, o.state, "", o.wait, o.final)
	m.settle(a.of)
	return ok
}

// giveBack hands back a grant that reached nobody.
func (m *model) giveBack(attempt uuid.UUID, version int64, delivery int) {
	if a := m.attempts[attempt]; a.state == "LEASED" && a.version == version && a.delivery == delivery && !a.renewed {
		m.end(a, "RELEASED", "undelivered", 0, false)
		m.settle(a.of)
	}
}

func (m *model) cancel(e *mExecution) string {
	switch e.state {
	case "CANCELING", "CANCELED":
		return ok
	case "SUCCEEDED", "FAILED":
		return "EXECUTION_CLOSED"
	}
	e.state = "CANCELING"
	if !e.stopping {
		m.stop(e)
	}
	m.cancelWaiting(e)
	m.closeExecution(e)
	e.forget()
	return ok
}

func (m *model) terminate(e *mExecution) string {
	switch e.state {
	case "CANCELED":
		return ok
	case "SUCCEEDED", "FAILED":
		return "EXECUTION_CLOSED"
	}
	e.state, e.stopping = "CANCELING", true
	for _, s := range e.steps {
		if s.live != nil {
			m.end(s.live, "LOST", "revoked", 0, false)
		}
	}
	m.cancelWaiting(e)
	m.closeExecution(e)
	e.forget()
	return ok
}

func (m *model) revoke(attempt uuid.UUID, version int64) string {
	a := m.attempts[attempt]
	switch {
	case a.state == "LEASED" && a.version == version:
		m.end(a, "LOST", "revoked", 0, false)
		m.settle(a.of)
		return ok
	case a.version == version && a.reason == "revoked":
		return "replayed"
	default:
		return m.late(a, version)
	}
}

// retry opens the next round; round is the one that the request opened.
func (m *model) retry(e *mExecution, request, named string) (round int, why string) {
	if round = e.retries[request]; round > 0 {
		return round, "replayed"
	}
	if e.state != "FAILED" && e.state != "CANCELED" {
		return 0, "EXECUTION_NOT_RETRYABLE"
	}
	opened := map[*mStep]bool{}
	for _, s := range e.steps {
		if s.name == named || named == "" && (s.state == "FAILED" || s.state == "CANCELED") {
			opened[s] = true
		}
	}
	asked := len(opened)
	for again := true; again; {
		again = false
		for _, s := range e.steps {
			if !opened[s] && (s.state == "SKIPPED" || s.state == "CANCELED") && s.follows(opened) {
				opened[s], again = true, true
			}
		}
	}
	for s := range opened {
		if s.state == "SUCCEEDED" || s.barred(opened) {
			return 0, "STEP_NOT_RETRYABLE"
		}
	}
	if asked == 0 {
		return 0, "EXECUTION_NOT_RETRYABLE"
	}
	m.reopen(e, opened)
	e.retries[request] = e.round
	return e.round, ok
}

// follows tells whether a step is opened with its parents: all are well or opened, one of these.
func (s *mStep) follows(opened map[*mStep]bool) bool {
	one := false
	for _, p := range s.parents {
		one = one || opened[p]
	}
	return one && !s.barred(opened)
}

// barred tells whether a step would wait for a parent that stays as it ended.
func (s *mStep) barred(opened map[*mStep]bool) bool {
	for _, p := range s.parents {
		if p.state != "SUCCEEDED" && !opened[p] {
			return true
		}
	}
	return false
}

func (m *model) reopen(e *mExecution, opened map[*mStep]bool) {
	e.state, e.stopping, e.stopAt, e.due = "QUEUED", false, time.Time{}, m.now
	e.round++
	if e.deadline = (time.Time{}); e.timeout > 0 {
		e.deadline = m.now.Add(e.timeout)
	}
	for s := range opened {
		s.state, s.counted, s.failed, s.lost, s.freed, s.opened = "BLOCKED", 0, 0, 0, 0, time.Time{}
	}
	for s := range opened {
		if s.waits() == 0 {
			s.open(m.now)
		}
	}
}

// credit is what an outage of the service gives back.
func (m *model) credit(gap time.Duration) {
	for _, e := range m.executions {
		moved := false
		for _, s := range e.steps {
			moved = moved || s.live != nil && !s.live.stopAt.IsZero()
		}
		if moved {
			e.stopAt = e.stopAt.Add(gap)
		}
	}
	for _, a := range m.live() {
		if !a.expires.After(m.sweptAt) {
			continue
		}
		if !a.stopAt.IsZero() {
			a.stopAt = a.stopAt.Add(gap)
		}
		if at := m.now.Add(min(gap, a.duration)); at.After(a.expires) {
			a.expires = at
		}
		a.expires = earlier(earlier(a.expires, a.limit), a.stopAt)
	}
}

// expire ends the leases that are over.
func (m *model) expire() (n int) {
	for _, e := range m.executions {
		var over []*mAttempt
		for _, s := range e.steps {
			if s.live != nil && passed(s.live.expires, m.now) {
				over = append(over, s.live)
			}
		}
		slices.SortFunc(over, func(a, b *mAttempt) int { return cmp.Compare(a.id.String(), b.id.String()) })
		for _, a := range over {
			m.expireOne(a)
		}
		n += len(over)
		if len(over) > 0 {
			m.settle(e)
		}
	}
	return n
}

func (m *model) expireOne(a *mAttempt) {
	e, s, at := a.of, a.step, a.expires
	switch {
	case e.stopping && passed(e.stopAt, at):
		m.end(a, "CANCELED", "cancel_grace_over", 0, false)
	case passed(e.deadline, at):
		e.ending = true
		m.end(a, "TIMED_OUT", "execution_deadline", 0, true)
	case passed(s.closesAt(), at):
		m.end(a, "TIMED_OUT", "schedule_to_close_timeout", 0, true)
	case passed(a.slow, at):
		m.end(a, "TIMED_OUT", "start_to_close_timeout", 0, false)
	case a.worker.session != a.session:
		m.end(a, "LOST", "session_superseded", 0, false)
	default:
		m.end(a, "LOST", "lease_expired", 0, false)
	}
}

// fire looks at all rules of time, those of an execution in the order in which they came.
func (m *model) fire() {
	for _, e := range m.executions {
		if e.ended() {
			continue
		}
		type rule struct {
			at   time.Time
			kind string
			id   uuid.UUID // zero: of the execution
			step *mStep
		}
		var due []rule
		add := func(at time.Time, kind string, s *mStep) {
			if passed(at, m.now) {
				due = append(due, rule{at: at, kind: kind, step: s})
				if s != nil {
					due[len(due)-1].id = s.id
				}
			}
		}
		add(e.deadline, "DEADLINE", nil)
		for _, s := range e.steps {
			add(s.closeTimer, "SCHEDULE_TO_CLOSE", s)
			add(s.startTimer, "SCHEDULE_TO_START", s)
		}
		slices.SortFunc(due, func(a, b rule) int {
			return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.kind, b.kind), bytes.Compare(a.id[:], b.id[:]))
		})
		if e.state == "CREATED" && passed(e.due, m.now) {
			e.state = "QUEUED"
		}
		for _, r := range due {
			if r.step == nil {
				m.exceed(e)
			} else {
				m.fireStep(e, r.step, r.kind)
			}
		}
		m.settle(e)
	}
}

func (m *model) fireStep(e *mExecution, s *mStep, kind string) {
	if kind == "SCHEDULE_TO_CLOSE" {
		s.closeTimer = time.Time{}
	} else {
		s.startTimer = time.Time{}
	}
	if s.state == "READY" && !e.ended() {
		m.close(e, s, "FAILED")
	}
}

// exceed ends an execution at its deadline.
func (m *model) exceed(e *mExecution) {
	e.ending = true
	for _, s := range e.steps {
		switch s.state {
		case "RUNNING":
			m.end(s.live, "TIMED_OUT", "execution_deadline", 0, true)
		case "READY":
			m.close(e, s, "FAILED")
		case "BLOCKED":
			m.close(e, s, "SKIPPED")
		}
	}
	e.cancelAll, e.closed, e.barred = false, nil, nil
	m.closeExecution(e)
}

// register opens a session, and tells which.
func (m *model) register(w *mWorker, session uuid.UUID, request string) uuid.UUID {
	if w.session != uuid.Nil && request != "" && w.request == request {
		return w.session
	}
	if w.session != uuid.Nil {
		w.past[w.session] = true
	}
	w.session, w.request, w.draining = session, request, false
	return session
}

// stranger is why a session is refused, or "".
func (w *mWorker) stranger(session uuid.UUID) string {
	switch {
	case w.session == session:
		return ok
	case w.past[session]:
		return "SESSION_SUPERSEDED"
	default:
		return "SESSION"
	}
}

// leave ends a session.
func (m *model) leave(w *mWorker, session uuid.UUID, force bool) string {
	if why := w.stranger(session); why != ok {
		return why
	}
	if m.held(w) > 0 && !force {
		return "LEASES_LIVE"
	}
	w.session = uuid.Nil
	return ok
}

// lose ends the leases of a worker's sessions that are over.
func (m *model) lose(w *mWorker) (n int) {
	for _, e := range m.executions {
		for _, s := range e.steps {
			if s.live != nil && s.live.worker == w && s.live.session != w.session {
				m.end(s.live, "LOST", "worker_deregistered", 0, false)
				n++
			}
		}
		m.settle(e)
	}
	return n
}
