package memstore_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/server/internal/memstore"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// The simulation drives the ports of the application, on the store in memory, from one
// goroutine: producers, workers, operators, replicas and relays of which each does one thing at
// a time, in an order that is drawn; calls are parked and come later, commits fail or go
// unanswered, processes die, the clock jumps. After each step the store is compared with the
// model (model_test.go), and its events with both.
//
// The package's documentation tells how a failure is replayed.
//
// LEASEHOLD_STEPS is how many steps are driven at least.

const (
	defaultSteps = 20_000
	stepsOfWorld = "300" // on the average
	worlds       = "10"  // between two looks at the number of steps
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.steps": stepsOfWorld, "rapid.checks": worlds} {
		if err := flag.Set(name, value); err != nil { // flags of the command line come later, and win
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func TestSimulation_AgreesWithTheModel(t *testing.T) {
	t.Parallel()
	wanted := defaultSteps
	if text := os.Getenv("LEASEHOLD_STEPS"); text != "" {
		var err error
		if wanted, err = strconv.Atoi(text); err != nil {
			t.Fatalf("LEASEHOLD_STEPS: %v", err)
		}
	}
	all := newTally()
	began := time.Now() // monotonic
	t.Cleanup(func() { all.log(t, time.Since(began)) })
	for once := true; once || all.steps < wanted && !seeded(); once = false {
		rapid.Check(t, func(rt *rapid.T) {
			all.worlds++
			newWorld(rt, all).play(rt)
		})
	}
	if !seeded() {
		all.enough(t)
	}
}

// The same draws make the same history, to the last byte of the last event.
func TestSimulation_ASeedReplaysExactly(t *testing.T) {
	t.Parallel()
	history := func(seed int) string {
		return rapid.Custom(func(rt *rapid.T) string {
			all := newTally()
			newWorld(rt, all).play(rt)
			return fmt.Sprintf("%d steps, %x", all.steps, all.digest.Sum(nil))
		}).Example(seed)
	}
	histories := map[string]bool{}
	for seed := range 20 {
		first := history(seed)
		if again := history(seed); again != first {
			t.Fatalf("seed %d: %s, then %s", seed, first, again)
		}
		histories[first] = true
	}
	if len(histories) < 15 {
		t.Errorf("20 seeds make only %d histories", len(histories))
	}
}

// tally counts what was driven.
type tally struct {
	steps, worlds int
	failed        int            // steps until the first failure; 0: none
	met           map[string]int // what calls came to
	digest        hash.Hash      // of every event
}

func newTally() *tally { return &tally{met: map[string]int{}, digest: sha256.New()} }

func (a *tally) log(t *testing.T, took time.Duration) {
	t.Logf("%d steps in %d worlds, %s", a.steps, a.worlds, took.Round(time.Millisecond))
	for _, what := range slices.Sorted(maps.Keys(a.met)) {
		t.Logf("%8d %s", a.met[what], what)
	}
	if a.failed > 0 {
		t.Logf("the first failure came after %d steps; what follows made it shorter", a.failed)
	}
}

// enough fails a simulation that does not try what it is for.
func (a *tally) enough(t *testing.T) {
	often := []string{
		"commit lost", "answer lost", "granted", "replayed", "given back", "LEASE_SUPERSEDED", "OUTCOME_ALREADY_RECORDED",
		"LEASE_REVOKED", "SESSION_SUPERSEDED", "CANCEL_NOT_REQUESTED", "round opened", "key reused", "key repeated", "credit",
		"execution SUCCEEDED", "execution FAILED", "execution CANCELED", "step CANCELED", "step SKIPPED",
		"attempt SUCCEEDED", "attempt FAILED", "attempt TIMED_OUT", "attempt LOST", "attempt RELEASED",
	}
	seldom := []string{
		"EXECUTION_CLOSED", "LEASE_EXPIRED", "EXECUTION_NOT_RETRYABLE", "STEP_NOT_RETRYABLE", "LEASES_LIVE", "SESSION",
		"attempt CANCELED", "event given up",
	}
	if a.steps >= 10*defaultSteps {
		often = append(often, seldom...)
	}
	for _, what := range often {
		if a.met[what] == 0 {
			t.Errorf("never met: %s", what)
		}
	}
}

// seeded tells whether a seed or a file was given: then one turn replays it.
func seeded() bool {
	return flag.Lookup("rapid.seed").Value.String() != "0" || flag.Lookup("rapid.failfile").Value.String() != ""
}

// world is everything that takes part.
type world struct {
	rt    *rapid.T
	m     *model
	s     *memstore.Store
	drawn uint64 // ids
	*tally
	// The latest that it ever was: a claim that was over once is not its relay's any more.
	latest time.Time
	fault  memstore.Fault // of the next commit
	hit    memstore.Fault // that the last call met
	calm   bool           // no more mishaps

	specs  map[*mExecution]*task.ExecutionSpec
	parked []func() // calls that are on their way
	procs  []*proc
	leases []held
	rounds []*round
	grants []*grant
	runs   []*publishing
	sink   map[uuid.UUID]*received
	// Which claim an execution's events are under; none: they are settled.
	holders map[uuid.UUID]uuid.UUID
	folds   map[uuid.UUID]*fold
	known   []scheduler.Revision // executions that have ended and were compared since
}

func newWorld(rt *rapid.T, all *tally) *world {
	w := &world{
		rt: rt, tally: all, m: newModel(memstore.Epoch()), latest: memstore.Epoch(), specs: map[*mExecution]*task.ExecutionSpec{},
		sink: map[uuid.UUID]*received{}, holders: map[uuid.UUID]uuid.UUID{}, folds: map[uuid.UUID]*fold{},
	}
	w.s = memstore.New(memstore.Config{
		Events: task.AllEventTypes(), Chance: func() float64 { return 0.5 },
		Fault: func(string) memstore.Fault {
			f := w.fault
			w.fault, w.hit = memstore.NoFault, f
			return f
		},
	})
	for _, name := range []string{"w1", "w2", "w3"} {
		w.start(name, w.requestID())
	}
	return w
}

// play lets the world run for a while, and then to its end.
func (w *world) play(rt *rapid.T) {
	actions := map[string]func(*rapid.T){}
	for name, do := range w.actions() {
		actions[name] = func(rt *rapid.T) {
			w.rt = rt
			do(rt)
			w.steps++
		}
	}
	actions[""] = func(rt *rapid.T) { w.rt = rt; w.check() }
	rt.Repeat(actions)
	w.rt = rt
	w.quiesce()
}

// actions are what can happen, the more often the more names a thing has. The first in order of
// name are drawn somewhat more often than others.
func (w *world) actions() map[string]func(*rapid.T) {
	all := map[string]func(*rapid.T){}
	for order, a := range []struct {
		name  string
		times int
		do    func(*rapid.T)
	}{
		{"give", 5, w.give},
		{"report", 8, w.report},
		{"enqueue", 6, w.enqueue},
		{"claim", 6, w.claim},
		{"dispatch", 6, w.dispatch},
		{"deliver", 5, w.deliver},
		{"renew", 5, w.renew},
		{"poll again", 4, w.pollAgain},
		{"parked call", 5, w.runParked},
		{"clock", 4, w.passTime},
		{"begin a sweep", 2, w.beginSweep},
		{"expire leases", 3, w.expire},
		{"fire timers", 2, w.fire},
		{"claim events", 2, w.claimEvents},
		{"publish", 4, w.publish},
		{"settle events", 2, w.settleEvents},
		{"register", 3, w.register},
		{"retry", 2, w.retry},
		{"revoke", 1, w.revoke},
		{"cancel", 3, w.cancel},
		{"terminate", 1, w.terminate},
		{"drain", 1, w.drainProcess},
		{"leave", 1, w.leave},
		{"die", 1, w.die},
		{"pause", 2, w.pause},
		{"drain a node", 1, w.drainNode},
		{"crash of a replica", 1, w.crash},
	} {
		for i := range a.times {
			all[fmt.Sprintf("%02d %s %d", order, a.name, i)] = a.do
		}
	}
	return all
}

func (w *world) id() uuid.UUID {
	w.drawn++
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[8:], w.drawn*0x9e3779b97f4a7c15) // in an order that means nothing
	return id
}

func (w *world) requestID() string {
	w.drawn++
	return "request " + strconv.FormatUint(w.drawn, 10)
}

func (w *world) fatalf(format string, args ...any) {
	w.rt.Helper()
	if w.failed == 0 {
		w.failed = w.steps
	}
	w.rt.Fatalf(format, args...)
}

// one draws one of several, and skips the step where there is none.
func one[T any](rt *rapid.T, what string, from []T) T {
	if len(from) == 0 {
		rt.Skip("none is there")
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(rt, what)]
}

// in tells, in one of n cases, yes.
func (w *world) in(rt *rapid.T, n int, what string) bool {
	return !w.calm && rapid.IntRange(0, n-1).Draw(rt, what) == 1 // 0, to which failures shrink, is: no
}

// issue makes a call, or parks it: then it comes later, if at all, after others that began after it.
func (w *world) issue(rt *rapid.T, call func()) {
	if w.in(rt, 8, "park the call") {
		w.parked = append(w.parked, call)
		return
	}
	w.make(rt, call)
}

// make makes a call, whose commit may fail, or succeed without its answer. Such a call is often
// made again, others seldom.
func (w *world) make(rt *rapid.T, call func()) {
	w.hit = memstore.NoFault
	switch {
	case w.in(rt, 30, "lose the commit"):
		w.fault = memstore.Lost
	case w.in(rt, 30, "lose the answer"):
		w.fault = memstore.Unconfirmed
	}
	call()
	w.fault = memstore.NoFault
	if again := map[bool]int{true: 2, false: 12}[w.hit != memstore.NoFault]; w.in(rt, again, "repeat the call") {
		w.parked = append(w.parked, call)
	}
}

// runParked makes a call that was parked, in whatever order.
func (w *world) runParked(rt *rapid.T) {
	if len(w.parked) == 0 {
		rt.Skip("none is parked")
	}
	i := len(w.parked) - 1 // the last one, or any
	if rapid.Bool().Draw(rt, "an older one") {
		i = rapid.IntRange(0, i).Draw(rt, "parked")
	}
	call := w.parked[i]
	w.parked = append(w.parked[:i:i], w.parked[i+1:]...)
	w.make(rt, call)
}

// committed tells whether a call has changed the store, and whether its answer came.
func (w *world) committed(err error) (done, answered bool) {
	hit := w.hit
	var away *scheduler.UnavailableError
	if errors.As(err, &away) != (hit != memstore.NoFault) {
		w.fatalf("a commit met fault %d, its caller got %v", hit, err)
	}
	switch hit {
	case memstore.Lost:
		w.met["commit lost"]++
	case memstore.Unconfirmed:
		w.met["answer lost"]++
	}
	return hit != memstore.Lost, hit == memstore.NoFault
}

// agree compares an answer with the model's.
func (w *world) agree(what string, err error, want string) {
	w.rt.Helper()
	if got := why(err); got != want {
		w.fatalf("%s: got %q (%v), want %q", what, got, err, want)
	}
	if err != nil {
		w.met[strings.Split(want, " by ")[0]]++
	}
}

// why is the reason of a refusal, or "".
func why(err error) string {
	var refused *scheduler.RefusedError
	var unknown *scheduler.NotFoundError
	var reused *scheduler.KeyReusedError
	switch {
	case err == nil:
		return ok
	case errors.As(err, &refused):
		return string(refused.Reason)
	case errors.As(err, &unknown):
		return string(unknown.Kind)
	case errors.As(err, &reused):
		return "key reused by " + reused.ExistingID
	default:
		return err.Error()
	}
}

func (w *world) ctx() context.Context { return context.Background() }
