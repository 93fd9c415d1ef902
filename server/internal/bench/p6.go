package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const lastPart = 10 // the last tenth of the time counts

// runP6 repeats drains while another transaction's snapshot is open, so that vacuum removes nothing,
// and without. What counts is how fast the last ones are.
func runP6(ctx context.Context, t *trial) error {
	return t.compare(ctx, []part{
		{"without", func(ctx context.Context) (Point, error) { return t.on(ctx, 1, true, t.drains) }},
		{"snapshot open", func(ctx context.Context) (Point, error) {
			return t.on(ctx, 1, true, func(ctx context.Context, s *site) (p Point, err error) {
				release, err := s.holdSnapshot(ctx)
				if err != nil {
					return p, err
				}
				defer release()
				return t.drains(ctx, s)
			})
		}},
	}, byRate, smaller)
}

// holdSnapshot opens a transaction that sees the database as it is now, as a long report or a
// forgotten session does.
func (s *site) holdSnapshot(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return nil, fmt.Errorf("open a snapshot: %w", err)
	}
	release = func() { _ = conn.Close(context.WithoutCancel(ctx)) } // It ends the transaction.
	for _, statement := range []string{
		`SET idle_in_transaction_session_timeout = 0`, `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`, `SELECT count(*) FROM executions`,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			release()
			return nil, fmt.Errorf("open a snapshot: %w", err)
		}
	}
	return release, nil
}

// drained is one drain.
type drained struct {
	at   time.Time // monotonic: its end
	took time.Duration
}

// drains enqueues and works off as often as it fits into the time, and measures the last tenth of
// that, or the last drain. PostgreSQL's figures are of the whole, with the enqueues.
func (t *trial) drains(ctx context.Context, s *site) (p Point, err error) {
	n := t.executions()
	m, err := s.begin(ctx, t.scenario.name)
	if err != nil {
		return p, err
	}
	var all []drained
	times := newStopwatch()
	for done := int64(0); time.Since(m.began) < t.duration() || done == 0; done += n {
		each := func(i int64) *leaseholdv1.EnqueueExecutionRequest { return oneStep(done + i) }
		if err := s.fill(ctx, n, each); err != nil {
			return p, err
		}
		crew := t.cfg.crew(true)
		crew.reports = times
		began := time.Now() // monotonic
		err := s.staffed(ctx, crew, func(ctx context.Context) error { return t.unlessStalled(s.awaitDone(ctx, done+n)) })
		if err != nil {
			return p, err
		}
		_, last := s.progress.now()
		all = append(all, drained{last, last.Sub(began)})
	}
	if p, err = m.end(ctx); err != nil {
		return p, err
	}
	p.Figures = map[string]float64{"drains": float64(len(all)), "first_drain_rate": by(float64(n), all[0].took.Seconds())}
	end := all[len(all)-1]
	p.Count, p.Seconds, p.Latency = 0, 0, times.latency()
	for _, d := range all {
		if d == end || end.at.Sub(d.at) < t.duration()/lastPart {
			p.Count, p.Seconds = p.Count+n, p.Seconds+d.took.Seconds()
		}
	}
	p.Rate = by(float64(p.Count), p.Seconds)
	return p, nil
}
