package history

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Load reads the tables of a namespace, or of all with an empty name, in one read-only snapshot.
// The service may work meanwhile. It needs about a kilobyte for each attempt of a run with all
// events.
func Load(ctx context.Context, conn *pgx.Conn, namespace string) (Committed, error) {
	c := Committed{Namespace: namespace}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return c, fmt.Errorf("load the tables: begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	// Whole tables are joined, perhaps without statistics; and that takes longer than work may.
	if _, err := tx.Exec(ctx, "SET LOCAL enable_nestloop = off; SET LOCAL statement_timeout = 0"); err != nil {
		return c, fmt.Errorf("load the tables: %w", err)
	}
	l := &loader{tx: tx, namespace: namespace, texts: map[string]string{}}
	c.Executions = load(ctx, l, "executions", executionsQuery, "e.id", l.execution)
	c.Steps = load(ctx, l, "steps", stepsQuery, "s.execution_id", l.step)
	c.Edges = load(ctx, l, "step_edges", edgesQuery, "s.execution_id", l.edge)
	c.Attempts = load(ctx, l, "attempts", attemptsQuery, "s.execution_id", l.attempt)
	c.Leases = load(ctx, l, "leases", leasesQuery, "l.execution_id", l.lease)
	c.Entries = load(ctx, l, "timeline_entries", entriesQuery, "t.execution_id", l.entry)
	c.Events = load(ctx, l, "outbox_events", eventsQuery, "o.aggregate_id", l.event)
	return c, l.err
}

const (
	executionsQuery = `
SELECT e.id, e.namespace, COALESCE(e.idempotency_key, ''), e.state, e.round, e.step_count, e.open_steps, e.unsuccessful_steps,
    e.live_attempts, e.revision, e.sequence, e.end_entry, e.started_at IS NOT NULL, e.ended_at IS NOT NULL
FROM executions e`
	stepsQuery = `
SELECT s.id, s.execution_id, s.name, s.state, s.stopped_because, COALESCE((s.retry_policy ->> 'MaximumAttempts')::integer, 3),
    s.waiting_parents, s.attempts_ended, s.counted, r.step_id IS NOT NULL OR EXISTS (
        SELECT FROM timers t WHERE t.execution_id = s.execution_id AND t.step_id IN (s.id, '00000000-0000-0000-0000-000000000000')
            AND t.kind <> 'START' AND t.fires_at <= now()), substr(sha256(o.body), 1, 8), substr(sha256(c.body), 1, 8)
FROM steps s
LEFT JOIN scheduling_requests r ON r.step_id = s.id AND r.attempt_number = s.attempts_ended + 1
LEFT JOIN payloads o ON o.step_id = s.id AND o.role = 'OUTPUT'
LEFT JOIN payloads c ON c.step_id = s.id AND c.role = 'CHECKPOINT'`
	edgesQuery = `
SELECT d.parent_id, d.child_id FROM step_edges d LEFT JOIN steps s ON s.id = d.child_id`
	attemptsQuery = `
SELECT a.id, a.step_id, a.session_id, a.number, a.round, a.state, a.reason, COALESCE(a.failure ->> 'type', ''),
    COALESCE((a.failure ->> 'non_retryable')::boolean OR s.retry_policy -> 'NonRetryableTypes' ? (a.failure ->> 'type'), false),
    a.lease_version, a.leased_at, a.ended_at, a.next_due, a.lease_entry, a.end_entry, a.outcome IS NOT NULL, a.progress,
    CASE WHEN a.progress_message <> '' THEN substr(sha256(convert_to(a.progress_message, 'UTF8')), 1, 8) END
FROM attempts a LEFT JOIN steps s ON s.id = a.step_id`
	leasesQuery = `
SELECT l.attempt_id, l.step_id, l.execution_id, l.session_id, l.lease_version FROM leases l`
	entriesQuery = `
SELECT t.execution_id, t.sequence, t.milestone, CASE WHEN t.title LIKE 'Execution %' THEN substr(t.title, 11) ELSE '' END,
    t.step_name, COALESCE(t.details ->> 'request_id', ''), t.count
FROM timeline_entries t`
	eventsQuery = `
SELECT o.id, o.aggregate_id, COALESCE(o.payload ->> 'attempt_id', o.payload ->> 'step_id')::uuid, o.sequence,
    (o.payload ->> 'round')::integer, o.event_type, o.status
FROM outbox_events o`
)

// loader reads in one transaction. After an error it reads no more.
type loader struct {
	tx        pgx.Tx
	namespace string
	texts     map[string]string // each text that comes again and again is kept once
	err       error
}

// load reads a table. execution is the column that tells whose a row is.
func load[T any](ctx context.Context, l *loader, table, query, execution string, scan func(pgx.Rows, *T) error) []T {
	if l.err != nil {
		return nil
	}
	var args []any
	if l.namespace != "" {
		query += " WHERE " + execution + " IN (SELECT x.id FROM executions x WHERE x.namespace = $1)"
		args = append(args, l.namespace)
	}
	list, err := scanAll(ctx, l.tx, query, args, scan)
	if err != nil {
		l.err = fmt.Errorf("load %s: %w", table, err)
	}
	return list
}

func scanAll[T any](ctx context.Context, tx pgx.Tx, query string, args []any, scan func(pgx.Rows, *T) error) ([]T, error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		var one T
		if err := scan(rows, &one); err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, rows.Err()
}

func (l *loader) once(texts ...*string) {
	for _, s := range texts {
		known, ok := l.texts[*s]
		if !ok {
			known = strings.Clone(*s)
			l.texts[known] = known
		}
		*s = known
	}
}

func (l *loader) execution(rows pgx.Rows, e *Execution) error {
	err := rows.Scan(&e.ID, &e.Namespace, &e.Key, &e.State, &e.Round, &e.StepCount, &e.OpenSteps, &e.Unsuccessful, &e.LiveLeases,
		&e.Revision, &e.Sequence, &e.EndEntry, &e.Started, &e.Ended)
	l.once(&e.Namespace, &e.State)
	return err
}

func (l *loader) step(rows pgx.Rows, s *Step) error {
	var output, checkpoint []byte
	err := rows.Scan(&s.ID, &s.Execution, &s.Name, &s.State, &s.StoppedBecause, &s.MaximumAttempts, &s.WaitingParents,
		&s.AttemptsEnded, &s.Counted, &s.Asked, &output, &checkpoint)
	s.Output, s.Checkpoint = stored(output), stored(checkpoint)
	l.once(&s.Name, &s.State, &s.StoppedBecause)
	return err
}

func (l *loader) edge(rows pgx.Rows, e *Edge) error { return rows.Scan(&e.Parent, &e.Child) }

func (l *loader) attempt(rows pgx.Rows, a *Attempt) error {
	var leasedAt time.Time
	var endedAt, nextDue *time.Time
	var progress *float64
	var message []byte
	err := rows.Scan(&a.ID, &a.Step, &a.Session, &a.Number, &a.Round, &a.State, &a.Reason, &a.FailureType, &a.Final,
		&a.Version, &leasedAt, &endedAt, &nextDue, &a.LeaseEntry, &a.EndEntry, &a.Reported, &progress, &message)
	a.LeasedAt, a.EndedAt, a.NextDue = leasedAt.UnixMicro(), micros(endedAt), micros(nextDue)
	if progress != nil {
		a.HasProgress, a.Progress = true, *progress
	}
	a.Message = stored(message)
	l.once(&a.State, &a.Reason, &a.FailureType)
	return err
}

func (l *loader) lease(rows pgx.Rows, e *Lease) error {
	return rows.Scan(&e.Attempt, &e.Step, &e.Execution, &e.Session, &e.Version)
}

func (l *loader) entry(rows pgx.Rows, e *Entry) error {
	err := rows.Scan(&e.Execution, &e.Sequence, &e.Milestone, &e.State, &e.Step, &e.RequestID, &e.Count)
	l.once(&e.State, &e.Step)
	return err
}

func (l *loader) event(rows pgx.Rows, e *Event) error {
	var subject *uuid.UUID
	err := rows.Scan(&e.ID, &e.Execution, &subject, &e.Sequence, &e.Round, &e.Type, &e.Status)
	if subject != nil {
		e.Subject = *subject
	}
	l.once(&e.Type, &e.Status)
	return err
}

// stored is the digest of what was stored; nothing: there is none.
func stored(sum []byte) Digest {
	if len(sum) == 0 {
		return 0
	}
	return digestFrom(sum)
}

func micros(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMicro()
}
