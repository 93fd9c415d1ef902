package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// refuseOthersWork keeps the drill from a database that is at work: its replicas would sweep what
// others lease, and publish to the drill's NATS what others are to hear. It comes before anything is
// changed there: also a schema that is older stays as it is.
func refuseOthersWork(ctx context.Context, db *pgxpool.Pool) (err error) {
	for began := time.Now(); ; { // monotonic
		// Sessions of servers that have just ended may still be there.
		if err = othersWork(ctx, db); err == nil || time.Since(began) > sessionsEnd || !pause(ctx, lookAgain) {
			return err
		}
	}
}

const sessionsEnd = 2 * time.Second

func othersWork(ctx context.Context, db *pgxpool.Pool) error {
	looks := []look{{`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold'`, "servers are connected to it"}}
	var schema bool
	if err := db.QueryRow(ctx, `SELECT to_regclass('executions') IS NOT NULL AND to_regclass('outbox_events') IS NOT NULL`).Scan(&schema); err != nil {
		return fmt.Errorf("look at the database: %w", err)
	}
	if schema {
		looks = append(looks, looksAtTables()...)
	}
	for _, l := range looks {
		var n int64
		if err := db.QueryRow(ctx, l.query).Scan(&n); err != nil {
			return fmt.Errorf("look at the database: %w", err)
		}
		if n > 0 {
			return fmt.Errorf("--database-url names a database that is at work: %d %s; use one that is not", n, l.why)
		}
	}
	return nil
}

// look counts what a database that is not at work has none of.
type look struct{ query, why string }

func looksAtTables() []look {
	return []look{
		{`SELECT count(*) FROM executions WHERE ended_at IS NULL`, "executions in it have not ended"},
		{`SELECT count(*) FROM outbox_events WHERE status NOT IN ('PUBLISHED', 'SKIPPED')`, "events in it are not published"},
	}
}

// removeTraces deletes what drills left in the user's database. Its servers are ended first.
func (s *stage) removeTraces(ctx context.Context, over []*exercise) error {
	s.stopAll()
	const executions = `(SELECT id FROM executions WHERE namespace = $1)`
	const steps = `(SELECT id FROM steps WHERE execution_id IN ` + executions + `)`
	var errs []error
	for _, x := range over {
		for _, statement := range []string{
			`DELETE FROM payloads WHERE step_id IN ` + steps,
			`DELETE FROM step_edges WHERE child_id IN ` + steps,
			`DELETE FROM attempts WHERE step_id IN ` + steps,
			`DELETE FROM scheduling_requests WHERE execution_id IN ` + executions,
			`DELETE FROM leases WHERE execution_id IN ` + executions,
			`DELETE FROM timers WHERE execution_id IN ` + executions,
			`DELETE FROM timeline_entries WHERE execution_id IN ` + executions,
			`DELETE FROM outbox_heads WHERE aggregate_id IN ` + executions,
			`DELETE FROM outbox_events WHERE namespace = $1`,
			`DELETE FROM steps WHERE execution_id IN ` + executions,
			`DELETE FROM executions WHERE namespace = $1`,
			`DELETE FROM lease_requests WHERE session_id IN (SELECT s.id FROM sessions s JOIN workers w ON w.id = s.worker_id WHERE w.namespace = $1)`,
			`DELETE FROM workers WHERE namespace = $1`, // with their sessions
			`DELETE FROM attempt_tallies WHERE capability_id IN (SELECT id FROM capabilities WHERE namespace = $1)`,
			`DELETE FROM capabilities WHERE namespace = $1`,
		} {
			limited, cancel := context.WithTimeout(ctx, time.Minute)
			_, err := s.db.Exec(limited, statement, x.namespace)
			cancel()
			if err != nil {
				errs = append(errs, fmt.Errorf("remove what %s left: %w", x.drill.name, err))
			}
		}
	}
	return errors.Join(errs...)
}
