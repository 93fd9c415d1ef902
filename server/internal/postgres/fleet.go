package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Bounds of what is counted and read for operators, whatever is there.
const (
	mostAttemptsOfWorker = 1000
	mostWaiting          = 100_000 // requests of one kind of a capability
	mostWaitingOfPage    = 200_000 // of all capabilities of a page together, about
	leastWaiting         = 1000
	mostLevels           = 1000 // priorities and nodes of a capability
	mostRunning          = 25_000
	mostWorkers          = 10_000
)

// ListWorkers reads a page of workers.
func (s *Store) ListWorkers(ctx context.Context, q scheduler.WorkerQuery) ([]scheduler.WorkerView, error) {
	var views []scheduler.WorkerView
	err := s.snapshot(ctx, "list workers", func(db *dbsqlc.Queries) error {
		rows, err := db.ListWorkers(ctx, dbsqlc.ListWorkersParams{
			Namespace: q.Namespace, After: q.After, Node: q.Node, Version: q.Version, Capability: q.Capability,
			LiveOnly: q.LiveOnly, SessionTimeout: interval(s.sessionTimeout), PageSize: int32(q.Limit),
		})
		if err != nil {
			return fmt.Errorf("read workers: %w", err)
		}
		views, err = s.workerViews(ctx, db, rows)
		return err
	})
	return views, err
}

// GetWorker reads a worker with its live attempts.
func (s *Store) GetWorker(ctx context.Context, id uuid.UUID) (scheduler.WorkerView, error) {
	var view scheduler.WorkerView
	err := s.snapshot(ctx, "get worker", func(db *dbsqlc.Queries) error {
		row, err := db.GetWorker(ctx, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return own(&scheduler.NotFoundError{Kind: scheduler.KindWorker, ID: id.String()})
		}
		if err != nil {
			return fmt.Errorf("read worker: %w", err)
		}
		views, err := s.workerViews(ctx, db, []dbsqlc.ListWorkersRow{dbsqlc.ListWorkersRow(row)})
		if err != nil {
			return err
		}
		view = views[0]
		leases, err := db.LeasesOfWorker(ctx, dbsqlc.LeasesOfWorkerParams{WorkerID: id, Most: mostAttemptsOfWorker})
		for i := range leases {
			view.Attempts = append(view.Attempts, workerAttempt(&leases[i]))
		}
		view.MoreAttempts = view.Standing.Live > len(view.Attempts)
		return wrap("read leases", err)
	})
	return view, err
}

func (s *Store) workerViews(ctx context.Context, q *dbsqlc.Queries, rows []dbsqlc.ListWorkersRow) ([]scheduler.WorkerView, error) {
	at, err := q.Now(ctx)
	if err != nil {
		return nil, err
	}
	now := at.Time.UTC()
	views := make([]scheduler.WorkerView, len(rows))
	of := make(map[uuid.UUID]*scheduler.WorkerView, len(rows))
	ids := make([]uuid.UUID, len(rows))
	for i := range rows {
		r := &rows[i]
		labels, err := fromJSONMap(r.Labels)
		if err != nil {
			return nil, err
		}
		views[i] = scheduler.WorkerView{
			ID: r.ID, Namespace: r.Namespace, Name: r.Name, Node: r.Node, Version: r.Version, Labels: labels,
			Capabilities: r.Capabilities, SessionID: r.SessionID.UUID, DrainsItself: r.Draining,
			Standing: task.Standing{
				Present: r.SessionID.Valid && s.seen(now, r.LastSeenAt.Time), Drained: r.Drained, Slots: int(r.Slots), Live: int(r.Live),
			},
			RegisteredAt: r.RegisteredAt.Time.UTC(), LastSeenAt: r.LastSeenAt.Time.UTC(), Now: now,
		}
		ids[i], of[r.ID] = r.ID, &views[i]
	}
	drains, err := q.DrainsOfWorkers(ctx, ids)
	for _, d := range drains {
		v := of[d.WorkerID]
		v.Drains = append(v.Drains, scheduler.DrainView{Kind: scheduler.DrainKind(d.Kind), Value: d.Value, Reason: d.Reason, At: d.CreatedAt.Time.UTC()})
	}
	return views, wrap("read drains", err)
}

// seen tells whether a sign of life is young enough for a worker to count as capacity.
func (s *Store) seen(now, lastSeen time.Time) bool { return lastSeen.After(now.Add(-s.sessionTimeout)) }

func workerAttempt(r *dbsqlc.LeasesOfWorkerRow) scheduler.WorkerAttempt {
	a := scheduler.WorkerAttempt{
		AttemptID: r.AttemptID, Number: int(r.Number), LeaseVersion: r.LeaseVersion, ExecutionID: r.ExecutionID,
		ExecutionName: r.ExecutionName, StepID: r.StepID, StepName: r.StepName, Capability: r.Capability,
		LeasedAt: r.LeasedAt.Time.UTC(), ExpiresAt: r.ExpiresAt.Time.UTC(), ProgressMessage: r.ProgressMessage,
	}
	if r.Progress.Valid {
		a.Progress = &r.Progress.Float64
	}
	return a
}

// getCapability reads one, after the transaction that changed it.
func (s *Store) getCapability(ctx context.Context, c scheduler.CapabilityKey) (scheduler.CapabilityView, error) {
	views, err := s.ListCapabilities(ctx, scheduler.CapabilityQuery{Namespace: c.Namespace, Name: c.Name, Limit: 1})
	if err != nil || len(views) == 0 {
		return scheduler.CapabilityView{Name: c.Name}, err
	}
	return views[0], nil
}

// ListCapabilities reads a page of capabilities with all that is counted of them, each count up
// to a bound, in one snapshot.
func (s *Store) ListCapabilities(ctx context.Context, q scheduler.CapabilityQuery) ([]scheduler.CapabilityView, error) {
	var p *capabilityPage
	err := s.snapshot(ctx, "list capabilities", func(db *dbsqlc.Queries) error {
		p = &capabilityPage{q: db, timeout: s.sessionTimeout, byID: map[int32]*scheduler.CapabilityView{}, byName: map[string]*scheduler.CapabilityView{}}
		return p.read(ctx, q)
	})
	if err != nil {
		return nil, err
	}
	return p.views, nil
}

// capabilityPage is a page while it is read.
type capabilityPage struct {
	q       *dbsqlc.Queries
	timeout time.Duration
	views   []scheduler.CapabilityView
	ids     []int32
	names   []string
	byID    map[int32]*scheduler.CapabilityView
	byName  map[string]*scheduler.CapabilityView
}

func (p *capabilityPage) read(ctx context.Context, q scheduler.CapabilityQuery) error {
	rows, err := p.q.ListCapabilities(ctx, dbsqlc.ListCapabilitiesParams{Namespace: q.Namespace, After: q.After, Wanted: q.Name, PageSize: int32(q.Limit)})
	if err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	p.views = make([]scheduler.CapabilityView, len(rows))
	for i, r := range rows {
		v := &p.views[i]
		*v = scheduler.CapabilityView{Name: r.Name, Pause: pauseOf(dbsqlc.PauseOfCapabilityRow{Paused: r.Paused, PauseReason: r.PauseReason, PausedAt: r.PausedAt})}
		v.LastMinute, v.LastHour = map[task.AttemptState]int64{}, map[task.AttemptState]int64{}
		p.ids, p.names = append(p.ids, r.ID), append(p.names, r.Name)
		p.byID[r.ID], p.byName[r.Name] = v, v
	}
	if len(rows) == 0 {
		return nil
	}
	if err := p.waiting(ctx); err != nil {
		return fmt.Errorf("count what waits: %w", err)
	}
	if err := p.running(ctx); err != nil {
		return fmt.Errorf("count what runs: %w", err)
	}
	if err := p.capacity(ctx, q.Namespace); err != nil {
		return fmt.Errorf("count capacity: %w", err)
	}
	return wrap("count outcomes", p.outcomes(ctx))
}

func pauseOf(r dbsqlc.PauseOfCapabilityRow) *task.Notice {
	if !r.Paused {
		return nil
	}
	return &task.Notice{At: r.PausedAt.Time.UTC(), Reason: r.PauseReason}
}

func (p *capabilityPage) waiting(ctx context.Context) error {
	at, err := p.q.Now(ctx)
	if err != nil {
		return err
	}
	most := min(max(mostWaitingOfPage/len(p.ids), leastWaiting), mostWaiting)
	rows, err := p.q.WaitingOfCapabilities(ctx, dbsqlc.WaitingOfCapabilitiesParams{Ids: p.ids, Most: int32(most + 1), MostLevels: mostLevels})
	for _, r := range rows {
		v, cut := p.byID[r.CapabilityID], r.Levels >= mostLevels
		v.Ready, v.Delayed = capped(int(r.Ready), most, cut), capped(int(r.Delayed), most, cut)
		if r.OldestAt.Valid {
			age := at.Time.Sub(r.OldestAt.Time)
			v.OldestReady = &age
		}
	}
	return err
}

// capped is a number that was counted up to one more than a bound, or from a part only.
func capped(n, most int, cut bool) scheduler.Count {
	return scheduler.Count{N: min(n, most), More: cut || n > most}
}

func (p *capabilityPage) running(ctx context.Context) error {
	rows, err := p.q.RunningOfCapabilities(ctx, mostRunning)
	looked := 0
	for _, r := range rows {
		looked += int(r.Running)
		if v := p.byID[r.CapabilityID]; v != nil {
			v.Running.N = int(r.Running)
		}
	}
	for i := range p.views {
		p.views[i].Running.More = looked >= mostRunning
	}
	return err
}

func (p *capabilityPage) capacity(ctx context.Context, namespace string) error {
	rows, err := p.q.CapacityOfCapabilities(ctx, dbsqlc.CapacityOfCapabilitiesParams{
		Namespace: namespace, Most: mostWorkers, SessionTimeout: interval(p.timeout), Names: p.names,
	})
	more := false
	for _, r := range rows {
		if v := p.byName[r.Name]; v != nil {
			v.LiveWorkers, v.DrainedWorkers, v.FreeSlots = int(r.Live), int(r.Drained), r.Free
		} else { // of none: how many were looked at
			more = r.Live >= mostWorkers
		}
	}
	for i := range p.views {
		p.views[i].MoreWorkers = more
	}
	return err
}

func (p *capabilityPage) outcomes(ctx context.Context) error {
	rows, err := p.q.OutcomesOfCapabilities(ctx, p.ids)
	for _, r := range rows {
		v, state := p.byID[r.CapabilityID], task.AttemptState(r.State)
		v.LastHour[state] = r.LastHour
		if r.LastMinute > 0 {
			v.LastMinute[state] = r.LastMinute
		}
	}
	return err
}
