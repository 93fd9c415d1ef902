package scheduler

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// missesBeforeWait is how often an execution may be locked in a sweep before it is waited for.
const missesBeforeWait = 3

// sweep ends what is over, one replica at a time: leases, timeouts, deadlines, graces; and
// moves executions on whose start time has come.
func (s *Scheduler) sweep(ctx context.Context) {
	leases := &sweepJob{what: "leases were not ended", do: s.store.ExpireLeases}
	timers := &sweepJob{what: "timers were not looked at", do: s.store.FireTimers}
	lastTidy := stopwatch()
	for wait(ctx, s.sweepEvery) {
		start, err := s.store.BeginSweep(ctx, s.sweepEvery)
		if err != nil {
			s.logUnlessStopping(ctx, "sweep did not begin", err)
			continue
		}
		if !start.Mine {
			continue
		}
		if start.Credited {
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
			if err := s.store.Tidy(ctx); err != nil {
				s.logUnlessStopping(ctx, "tidying failed", err)
			}
		}
	}
}

// sweepJob is one kind of what is over, with how often executions were missed in a row.
type sweepJob struct {
	what   string
	do     func(context.Context, SweepBatch) (Swept, error)
	misses map[uuid.UUID]int
}

// sweepPart works through one kind of what is over, batch by batch. Executions that another
// transaction holds are left for the next sweep; from the third miss on they are waited for.
func (s *Scheduler) sweepPart(ctx context.Context, job *sweepJob) {
	var batch SweepBatch
	for id, n := range job.misses {
		if n >= missesBeforeWait {
			batch.Wait = append(batch.Wait, id)
		}
	}
	missed := map[uuid.UUID]int{}
	defer func() { job.misses = missed }()
	began := stopwatch()
	for ctx.Err() == nil && stopwatch().Sub(began) < sweepAtMost {
		swept, err := job.do(ctx, batch)
		if err != nil {
			s.logUnlessStopping(ctx, job.what, err)
			return
		}
		if swept.Done > 0 {
			s.hint(HintSlots, HintWork)
		}
		for _, id := range swept.Missed {
			missed[id] = job.misses[id] + 1
		}
		batch.Wait = nil
		batch.Skipped = append(batch.Skipped, swept.Missed...)
		if !swept.More || swept.Done == 0 && len(swept.Missed) == 0 {
			return
		}
	}
}

// sweepAtMost bounds one part of a sweep: the rest is for the next one.
const sweepAtMost = 10 * time.Second

func (s *Scheduler) logUnlessStopping(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		s.log.Warn(what, "error", err)
	}
}
