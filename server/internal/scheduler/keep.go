package scheduler

import (
	"context"
	"errors"
)

// Renew keeps attempts. Each renewal has its own answer.
func (s *Scheduler) Renew(ctx context.Context, renewals []Renewal) []Result[Renewed] {
	return s.renewals.do(ctx, renewals...)
}

// Report ends attempts. Each report has its own answer; one that repeats the very report that
// ended its attempt is answered OK again.
func (s *Scheduler) Report(ctx context.Context, reports []Report) []Result[Reported] {
	return s.reports.do(ctx, reports...)
}

func weighRenewal(r Renewal) int { return bytesPerRenewal + r.Checkpoint.Size() }

func weighReport(r Report) int {
	bytes := bytesPerStep + r.Outcome.Checkpoint.Size() + r.Outcome.Output.Size()
	if f := r.Outcome.Failure; f != nil {
		bytes += len(f.Message) + f.Details.Size()
	}
	return bytes
}

func (s *Scheduler) flushRenewals(ctx context.Context, batch []Renewal, wait bool) ([]Result[Renewed], error) {
	results, err := s.store.Renew(ctx, batch, wait)
	for _, r := range results {
		if r.Err == nil {
			s.presence.seen(r.Value.WorkerID)
		}
		s.noteLate(LateRenewal, r.Err)
	}
	return results, err
}

func (s *Scheduler) flushReports(ctx context.Context, batch []Report, wait bool) ([]Result[Reported], error) {
	results, err := s.store.Report(ctx, batch, wait)
	hints := []Hint{HintSlots, HintChange}
	opened := false
	for _, r := range results {
		s.noteLate(LateReport, r.Err)
		opened = opened || r.Value.Opened
	}
	if opened {
		hints = append(hints, HintWork)
	}
	if err == nil {
		s.hint(hints...)
	}
	return results, err
}

func (s *Scheduler) noteLate(call LateCall, err error) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		s.observer.LateRefused(call, refused.Reason)
	}
}
