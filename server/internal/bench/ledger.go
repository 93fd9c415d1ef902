package bench

import (
	"sync"

	"github.com/google/uuid"
)

// ledger is what this site's clients were told: the other half of the verdict.
type ledger struct {
	mu       sync.Mutex
	accepted map[uuid.UUID]string // executions that were answered OK: the key that they were asked for by
	asked    map[string]uuid.UUID // the other way round
	merged   int64                // keys that were answered OK with the execution of another one
	split    int64                // keys that were answered OK with another execution than before
	unsure   int64                // executions that were asked for, and of which nobody knows
	steps    map[uuid.UUID]tally  // that were leased
}

// tally is what became of a step's leases.
type tally struct {
	runs     int32 // of its handler
	reported int32 // reports that were answered OK
}

func newLedger() *ledger {
	return &ledger{accepted: map[uuid.UUID]string{}, asked: map[string]uuid.UUID{}, steps: map[uuid.UUID]tally{}}
}

// accept notes an execution that was answered OK, and its key: each has one of its own, whoever
// asks again. An id that nobody can read is missed in the tables.
func (l *ledger) accept(key, execution string) {
	id, _ := uuid.Parse(execution)
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, known := l.asked[key]; known {
		if before != id {
			l.split++
		}
		return
	}
	l.asked[key] = id
	if _, taken := l.accepted[id]; taken {
		l.merged++
		return
	}
	l.accepted[id] = key
}

// doubt notes executions whose enqueue was given up.
func (l *ledger) doubt(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsure += int64(n)
}

// run notes that a step's handler runs.
func (l *ledger) run(step string) { l.note(step, tally{runs: 1}) }

// report notes that a step's success was answered OK.
func (l *ledger) report(step string) { l.note(step, tally{reported: 1}) }

func (l *ledger) note(step string, more tally) {
	id, _ := uuid.Parse(step)
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.steps[id]
	l.steps[id] = tally{runs: t.runs + more.runs, reported: t.reported + more.reported}
}
