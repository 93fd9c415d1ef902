package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// missesBeforeWait is how often an execution may be locked in a sweep before it is waited for.
const missesBeforeWait = 3

// sweep ends what is over, one replica at a time: leases, timeouts, deadlines, graces; and
// moves executions on whose start time has come.
func (s *Scheduler) sweep(ctx context.Context) {
	leases := &sweepJob{work: SweepLeases, what: "leases were not ended", do: s.store.ExpireLeases}
	timers := &sweepJob{work: SweepTimers, what: "timers were not looked at", do: s.store.FireTimers}
	lastTidy := stopwatch()
	for wait(ctx, s.sweepEvery) {
		start, err := s.beginSweep(ctx)
		if err != nil {
			s.logUnlessStopping(ctx, "sweep did not begin", err)
			continue
		}
		s.observer.Looped(LoopSweeper)
		if !start.Mine {
			continue
		}
		if start.Credited {
			s.observer.Swept(SweepCredits, 1)
			s.log.Info("the service was away: live leases last anew", "gap", start.Gap)
		}
		if start.LeasesOver {
			s.sweepPart(ctx, leases)
		}
		if start.TimersDue {
			s.sweepPart(ctx, timers)
		}
		if stopwatch().Sub(lastTidy) > tidyEvery {
			lastTidy = stopwatch()
			s.tidy(ctx)
		}
	}
}

// Nothing of the loop waits for ever: a store that fell silent costs it one round.

func (s *Scheduler) beginSweep(ctx context.Context) (SweepStart, error) {
	ctx, cancel := context.WithTimeout(ctx, sweepBegins)
	defer cancel()
	return s.store.BeginSweep(ctx, s.sweepEvery)
}

func (s *Scheduler) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tidyAtMost)
	defer cancel()
	if err := s.store.Tidy(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("tidying failed", "error", err)
	}
}

// sweepJob is one kind of what is over, with how often executions were missed in a row.
type sweepJob struct {
	work   SweepWork
	what   string
	do     func(context.Context, SweepBatch) (Swept, error)
	misses map[uuid.UUID]int
}

// sweepPart works through one kind of what is over, batch by batch. Executions that another
// transaction holds are left for the next sweep; from the third miss on they are waited for,
// after all others. One that cannot be worked on at all is left out, with a word in the log,
// and stops nobody else's recovery.
func (s *Scheduler) sweepPart(ctx context.Context, job *sweepJob) {
	ctx, cancel := context.WithTimeout(ctx, sweepAtMost)
	defer cancel()
	missed := map[uuid.UUID]int{}
	batch := SweepBatch{Limit: sweepLimit}
	for ctx.Err() == nil {
		swept, err := job.do(ctx, batch)
		if err != nil {
			if !s.narrow(ctx, job, &batch, swept, err) {
				return
			}
			continue
		}
		s.swept(job, swept)
		for _, id := range swept.Missed {
			missed[id] = job.misses[id] + 1
		}
		batch.Limit = sweepLimit
		batch.Skipped = append(batch.Skipped, swept.Missed...)
		if !swept.More || swept.Done == 0 && len(swept.Missed) == 0 {
			break
		}
	}
	job.misses = missed
	s.sweepMissed(ctx, job)
}

// narrow deals with a batch that failed: it is halved until the culprit is alone, which is
// then left out. It is false when the store is away: there is nothing to narrow.
func (s *Scheduler) narrow(ctx context.Context, job *sweepJob, batch *SweepBatch, swept Swept, err error) bool {
	var away *UnavailableError
	if ctx.Err() != nil || errors.As(err, &away) && !away.Locked {
		s.logUnlessStopping(ctx, job.what, err)
		return false
	}
	if batch.Limit > 1 {
		batch.Limit /= 2
		return true
	}
	s.log.Error(job.what, "executions", swept.Looked, "error", err)
	batch.Limit = sweepLimit
	batch.Skipped = append(batch.Skipped, swept.Looked...)
	return len(swept.Looked) > 0
}

// sweepMissed waits for executions that were missed too often, one by one.
func (s *Scheduler) sweepMissed(ctx context.Context, job *sweepJob) {
	for id, n := range job.misses {
		if n <= missesBeforeWait || ctx.Err() != nil {
			continue
		}
		swept, err := job.do(ctx, SweepBatch{Limit: sweepLimit, Wait: []uuid.UUID{id}})
		if err != nil {
			s.logUnlessStopping(ctx, job.what, err)
			continue
		}
		delete(job.misses, id)
		s.swept(job, swept)
	}
}

func (s *Scheduler) swept(job *sweepJob, swept Swept) {
	if swept.Done > 0 {
		s.observer.Swept(job.work, swept.Done)
		s.hint(HintSlots, HintWork, HintChange)
	}
}

// Bounds of one part of a sweep: the rest is for the next one, well before the gap between two
// sweeps looks like an outage.
const (
	sweepAtMost = 2 * time.Second
	sweepLimit  = 200 // candidates of one transaction
	sweepBegins = 5 * time.Second
	tidyAtMost  = 10 * time.Second
)

func (s *Scheduler) logUnlessStopping(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		s.log.Warn(what, "error", err)
	}
}
