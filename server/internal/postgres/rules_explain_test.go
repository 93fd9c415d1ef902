package postgres_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

const stepsOfASituation = 130

// What Explain says and what the dispatcher does are the same, over random situations: graphs,
// delays, backoffs, cancels, pauses, drains, pins, workers that are full, silent or gone. All
// steps are explained, then every worker that is there polls until nothing more is granted.
//   - A step that nothing hinders is leased.
//   - A step that is BEHIND_OTHERS alone is leased, or every slot that could have taken it was
//     taken by others, all of which come first.
//   - A step that anything else is said of is not leased.
//   - Whatever is left then is hindered by something, and what was leased is RUNNING.
//   - How many come first, and for how many slots, is what is counted by hand.
//
// Caught: drained workers that are not counted as such; a count of those ahead that leaves out
// pinned ones, takes delayed ones for due, or paused ones for waiting; free slots on other nodes.
func TestExplain_AgreesWithTheDispatcher(t *testing.T) {
	t.Parallel()
	causes := &causeCount{n: map[task.Cause]int{}}
	seed := uint64(time.Now().UnixNano())
	t.Run("situations", func(t *testing.T) {
		for i := range rounds(12, 80) {
			t.Run(fmt.Sprintf("seed %d", seed+uint64(i)), func(t *testing.T) {
				t.Parallel()
				newSituation(t, rand.New(rand.NewPCG(seed+uint64(i), 1)), i%3 == 0).play(causes)
			})
		}
	})
	t.Logf("explained: %v", causes.n)
	for _, c := range []task.Cause{
		"", task.CauseTerminal, task.CauseCanceling, task.CauseRunning, task.CauseParents, task.CausePaused, task.CauseDueLater,
		task.CauseNoWorker, task.CauseNodeAway, task.CauseWorkersDrained, task.CauseWorkersFull, task.CauseBehindOthers,
	} {
		if causes.n[c] == 0 && !t.Failed() {
			t.Errorf("%q never came up: this tests nothing of it", c)
		}
	}
}

type causeCount struct {
	mu sync.Mutex
	n  map[task.Cause]int
}

func (l *causeCount) add(c task.Cause) {
	l.mu.Lock()
	l.n[c]++
	l.mu.Unlock()
}

// situation is a random state of a database.
type situation struct {
	*stand
	rng     *rand.Rand
	workers []worker
	polls   []worker // those that are there
	steps   map[uuid.UUID]*task.StepSpec
	ids     []uuid.UUID
	execs   []uuid.UUID
	dues    map[uuid.UUID]time.Time // of the steps that waited before the dispatch
}

// newSituation makes one; in a crowded one every worker has as much as it can take.
func newSituation(t *testing.T, rng *rand.Rand, crowded bool) *situation {
	t.Helper()
	s := &situation{stand: standOn(t, databases.New(t), postgres.Config{MaxConns: 4}), rng: rng, steps: map[uuid.UUID]*task.StepSpec{}}
	for len(s.ids) < stepsOfASituation {
		s.addExecution()
	}
	for i := range 2 + rng.IntN(8) {
		s.addWorker(i)
	}
	s.live(crowded)
	s.steer()
	return s
}

func (s *situation) maybe(percent int) bool { return s.rng.IntN(100) < percent }

// capability is one of c0 to c3, or seldom nobody's.
func (s *situation) capability() string {
	if s.maybe(8) {
		return nobodys
	}
	return fmt.Sprint("c", s.rng.IntN(4))
}

const nobodys = "nobody-has-this"

func (s *situation) node() string { return fmt.Sprint("n", s.rng.IntN(3)) }

// addExecution accepts one of a random graph, each step of which may wait for earlier ones.
func (s *situation) addExecution() {
	e := &task.ExecutionSpec{Namespace: "default", Name: "random", CancelGrace: time.Hour, FailFast: s.maybe(30)}
	if s.maybe(10) {
		e.StartDelay = time.Hour
	}
	if s.maybe(5) {
		e.Namespace = "elsewhere"
	}
	for i := range 1 + s.rng.IntN(6) {
		step := task.StepSpec{
			Name: fmt.Sprint("s", i), Capability: s.capability(), StartToClose: 2 * time.Hour, Priority: s.rng.IntN(4),
			Retry: task.RetryPolicy{InitialInterval: time.Hour, BackoffCoefficient: 1, MaximumInterval: time.Hour, MaximumAttempts: 1 + s.rng.IntN(3)},
		}
		if s.maybe(20) {
			step.Node = s.node()
		}
		if s.maybe(8) {
			step.StartDelay = time.Hour
		}
		if s.maybe(30) && i > 0 {
			step.DependsOn = []string{fmt.Sprint("s", s.rng.IntN(i))}
		}
		e.Steps = append(e.Steps, step)
	}
	ids := s.enqueue(e)
	s.execs = append(s.execs, ids.Execution)
	for i, id := range ids.Steps {
		s.ids = append(s.ids, id)
		if e.Namespace == "default" { // nobody works elsewhere
			s.steps[id] = &e.Steps[i]
		}
	}
}

func (s *situation) addWorker(i int) {
	r := scheduler.Registration{Namespace: "default", Name: fmt.Sprint("w", i), Version: fmt.Sprint("v", s.rng.IntN(3)), Slots: 1 + s.rng.IntN(8)}
	for range 1 + s.rng.IntN(4) {
		if c := s.capability(); c != nobodys && !slices.Contains(r.Capabilities, c) {
			r.Capabilities = append(r.Capabilities, c)
		}
	}
	if r.Capabilities == nil {
		r.Capabilities = []string{"none"}
	}
	if s.maybe(60) {
		r.Node = s.node()
	}
	session, err := s.store.Register(s.t.Context(), r, uuid.New(), uuid.New())
	if err != nil {
		s.t.Fatal(err)
	}
	s.workers = append(s.workers, worker{session, r})
}

// live lets workers take some steps and end some of those, and cancels executions.
func (s *situation) live(crowded bool) {
	var kept []uuid.UUID // executions with live leases
	for _, w := range s.workers {
		n := s.rng.IntN(w.reg.Slots + 1)
		if crowded {
			n = w.reg.Slots
		}
		for _, l := range s.lease(w, n, time.Hour) {
			r := success(l)
			switch s.rng.IntN(6) {
			case 0:
			case 1:
				r = failure(l)
			case 2:
				r.Outcome = task.Outcome{State: task.AttemptReleased, NotBefore: time.Hour}
			default:
				continue
			}
			if crowded {
				kept = append(kept, l.ExecutionID)
				continue
			}
			if _, err := s.report(r); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	for i, id := range append(kept, s.execs...) {
		if i == 0 && len(kept) > 0 || s.maybe(10) {
			if _, err := s.store.Cancel(s.t.Context(), []scheduler.Cancellation{{Execution: id}}, true); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// steer pauses and drains, and lets workers fall silent or leave.
func (s *situation) steer() {
	ctx := s.t.Context()
	check := func(err error) {
		if err != nil {
			s.t.Fatal(err)
		}
	}
	drain := func(kind scheduler.DrainKind, value string) {
		_, err := s.store.SetDrain(ctx, scheduler.Drain{Namespace: "default", Kind: kind, Value: value, Draining: true})
		check(err)
	}
	for i := range 4 {
		if s.maybe(12) {
			_, err := s.store.Pause(ctx, scheduler.CapabilityKey{Namespace: "default", Name: fmt.Sprint("c", i)}, "")
			check(err)
		}
		if s.maybe(5) {
			drain(scheduler.DrainNode, fmt.Sprint("n", i))
		}
		if s.maybe(5) {
			drain(scheduler.DrainVersion, fmt.Sprint("v", i))
		}
	}
	for _, w := range s.workers {
		switch s.rng.IntN(12) {
		case 0:
			drain(scheduler.DrainWorker, w.WorkerID.String())
		case 1:
			_, err := s.store.Drain(ctx, w.WorkerID, w.SessionID)
			check(err)
		case 2:
			s.exec(`UPDATE workers SET last_seen_at = now() - interval '2 minutes' WHERE id = $1`, w.WorkerID)
			continue
		case 3:
			s.exec(`UPDATE workers SET session_id = NULL WHERE id = $1`, w.WorkerID)
			continue
		}
		s.polls = append(s.polls, w)
	}
}

// play explains every step, dispatches, and compares.
func (s *situation) play(causes *causeCount) {
	before := s.explainAll()
	held := s.leases()
	s.dues = s.requests()
	s.countAhead(before)
	s.dispatch()
	s.ids = slices.DeleteFunc(s.ids, func(id uuid.UUID) bool { // what stays as it is, is asked for seldom
		codes := codesOf(before[id])
		return len(codes) > 0 && codes[0] != task.CauseBehindOthers && !s.maybe(20)
	})
	after, leases := s.explainAll(), s.leases()
	for id, x := range before {
		codes := codesOf(x)
		for _, c := range codes {
			causes.add(c)
		}
		if len(codes) == 0 {
			causes.add("")
		}
		got, leased := leases[id]
		leased = leased && held[id] != got
		switch {
		case len(codes) == 0 && !leased:
			s.t.Errorf("step %s: nothing hindered it (%s), and it was not leased: %s", id, x.Explanation.Summary, after[id].Explanation.Summary)
		case len(codes) == 1 && codes[0] == task.CauseBehindOthers:
			if !leased {
				s.behind(id, held, leases, after)
			}
		case len(codes) > 0 && leased:
			s.t.Errorf("step %s was leased in spite of %v: %s", id, codes, x.Explanation.Summary)
		}
		if now := codesOf(after[id]); after[id].At.After(x.At) && len(now) == 0 || leased && now[0] != task.CauseRunning {
			s.t.Errorf("step %s: before %v, leased %v, after %v", id, codes, leased, now)
		}
	}
	s.sane()
}

// countAhead counts by hand who comes first of the steps that nothing but that can hinder.
func (s *situation) countAhead(explained map[uuid.UUID]scheduler.StepExplained) {
	views, err := s.store.ListWorkers(s.t.Context(), scheduler.WorkerQuery{Namespace: "default", Limit: 1000})
	if err != nil {
		s.t.Fatal(err)
	}
	paused := map[string]bool{}
	for i := range 4 {
		name := fmt.Sprint("c", i)
		paused[name] = query[bool](s.stand, `SELECT COALESCE((SELECT paused FROM capabilities WHERE namespace = 'default' AND name = $1), false)`, name)
	}
	for id, x := range explained {
		codes := codesOf(x)
		if len(codes) > 1 || len(codes) == 1 && codes[0] != task.CauseBehindOthers {
			continue
		}
		var can []scheduler.WorkerView
		free, ahead := 0, 0
		for _, v := range views {
			if n := v.Standing.Free(); n > 0 && canRun(v, s.steps[id]) {
				can, free = append(can, v), free+n
			}
		}
		for other, due := range s.dues {
			spec := s.steps[other]
			if spec == nil || paused[spec.Capability] || due.After(x.At) || s.order(other).before(s.order(id)) >= 0 {
				continue
			}
			if slices.ContainsFunc(can, func(v scheduler.WorkerView) bool { return canRun(v, spec) }) {
				ahead++
			}
		}
		if len(codes) == 0 != (ahead < free) {
			s.t.Errorf("step %s: %v, and %d come first for %d slots", id, codes, ahead, free)
		}
		for _, f := range x.Explanation.Findings {
			if f.Ahead != ahead || f.Free != free {
				s.t.Errorf("step %s: %d come first for %d slots, counted %d for %d", id, f.Ahead, f.Free, ahead, free)
			}
		}
	}
}

func canRun(v scheduler.WorkerView, spec *task.StepSpec) bool {
	return slices.Contains(v.Capabilities, spec.Capability) && (spec.Node == "" || spec.Node == v.Node)
}

// behind fails unless those that took the slots which a step could have had come first.
func (s *situation) behind(id uuid.UUID, held, leases map[uuid.UUID]lease, after map[uuid.UUID]scheduler.StepExplained) {
	if codes := codesOf(after[id]); len(codes) != 1 || codes[0] != task.CauseWorkersFull {
		s.t.Errorf("step %s was behind others, and is now held by %v", id, codes)
	}
	order := s.order(id)
	for other, l := range leases {
		if held[other] == l || order.before(s.order(other)) >= 0 {
			continue
		}
		w := s.workers[slices.IndexFunc(s.workers, func(w worker) bool { return w.WorkerID == l.worker })]
		spec := s.steps[id]
		if slices.Contains(w.reg.Capabilities, spec.Capability) && (spec.Node == "" || spec.Node == w.reg.Node) {
			s.t.Errorf("step %s waits, and worker %s got step %s that comes after it", id, w.Name, other)
		}
	}
}

// place is where a step comes in the order of the claim.
type place struct {
	priority int
	due      time.Time
	id       uuid.UUID
}

func (p place) before(q place) int {
	return cmp.Or(cmp.Compare(q.priority, p.priority), p.due.Compare(q.due), slices.Compare(p.id[:], q.id[:]))
}

func (s *situation) order(id uuid.UUID) place {
	return place{s.steps[id].Priority, s.dues[id], id}
}

func codesOf(x scheduler.StepExplained) []task.Cause {
	var list []task.Cause
	for _, f := range x.Explanation.Findings {
		list = append(list, f.Cause)
	}
	return list
}

func (s *situation) explainAll() map[uuid.UUID]scheduler.StepExplained {
	all := make(map[uuid.UUID]scheduler.StepExplained, len(s.ids))
	for _, id := range s.ids {
		x, err := s.store.ExplainStep(s.t.Context(), scheduler.StepQuery{StepID: id})
		if err != nil {
			s.t.Fatalf("explain %s: %v", id, err)
		}
		all[id] = x
	}
	return all
}

// lease is a grant, as far as it matters here.
type lease struct {
	worker  uuid.UUID
	version int64
}

func (s *situation) leases() map[uuid.UUID]lease {
	rows, err := s.sql.Query(s.t.Context(), `SELECT step_id, worker_id, lease_version FROM leases`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	all := map[uuid.UUID]lease{}
	for rows.Next() {
		var step uuid.UUID
		var l lease
		if err := rows.Scan(&step, &l.worker, &l.version); err != nil {
			s.t.Fatal(err)
		}
		all[step] = l
	}
	return all
}

func (s *situation) requests() map[uuid.UUID]time.Time {
	rows, err := s.sql.Query(s.t.Context(), `SELECT step_id, available_at FROM scheduling_requests`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	all := map[uuid.UUID]time.Time{}
	for rows.Next() {
		var step uuid.UUID
		var due time.Time
		if err := rows.Scan(&step, &due); err != nil {
			s.t.Fatal(err)
		}
		all[step] = due
	}
	return all
}

// dispatch lets every worker that is there poll, again and again, until nobody gets anything.
func (s *situation) dispatch() {
	ctx, cancel := context.WithCancel(s.t.Context())
	service := scheduler.New(scheduler.Config{Store: s.store, SweepInterval: time.Hour})
	done := make(chan struct{})
	go func() { defer close(done); _ = service.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for again := true; again; {
		var wg sync.WaitGroup
		granted := make([]int, len(s.polls))
		for i, w := range s.polls {
			wg.Go(func() {
				answer, err := service.Poll(ctx, scheduler.Poll{WorkerID: w.WorkerID, SessionID: w.SessionID, MaxLeases: 20, Duration: time.Hour, Received: time.Now()})
				if err != nil {
					s.t.Errorf("poll: %v", err)
				}
				granted[i] = len(answer.Leases)
			})
		}
		wg.Wait()
		again = slices.Max(append(granted, 0)) > 0
	}
}
