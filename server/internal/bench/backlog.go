package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const grownAtOnce = 100_000 // rows of a statement

// grow adds executions to the backlog by plain SQL, a hundred times faster than by calls. They are
// copies of one that the service itself has written, whatever its tables are: a row of each table
// that has something of it, with other ids and keys.
func (s *site) grow(ctx context.Context, n int64) error {
	if s.pattern == uuid.Nil {
		if err := s.writePattern(ctx); err != nil {
			return err
		}
	}
	tables, err := s.tables(ctx)
	if err != nil {
		return err
	}
	for n > 0 {
		next := min(n, grownAtOnce)
		for _, table := range tables {
			if _, err := s.db.Exec(ctx, table.copyRows(), s.pattern, s.piled+1, s.piled+next); err != nil {
				return fmt.Errorf("add to the backlog in %s: %w", table.name, err)
			}
		}
		s.piled, n = s.piled+next, n-next
	}
	return nil
}

// writePattern enqueues the execution that is copied. It is not due itself, so that it stays as it
// is: what was leased would be copied with its attempt.
func (s *site) writePattern(ctx context.Context) error {
	conn, err := s.dial(0)
	if err != nil {
		return err
	}
	client := leaseholdv1.NewExecutionServiceClient(conn)
	req := oneStep(-1)
	req.Name = filler
	err = s.insist(ctx, func(ctx context.Context) error {
		answer, err := client.EnqueueExecution(ctx, req)
		if err == nil {
			s.pattern, err = uuid.Parse(answer.GetExecution().GetId())
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := s.db.Exec(ctx, `UPDATE scheduling_requests SET available_at = now() + interval '1 year' WHERE execution_id = $1`, s.pattern); err != nil {
		return fmt.Errorf("keep the pattern of the backlog: %w", err)
	}
	return nil
}

// tableColumns is a table that may have rows of an execution.
type tableColumns struct {
	name    string
	columns []string
}

// tables are those whose rows belong to an execution or to a step.
func (s *site) tables(ctx context.Context) ([]tableColumns, error) {
	rows, err := s.db.Query(ctx, `SELECT c.table_name::text, array_agg(c.column_name::text)
		FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
		WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.is_generated = 'NEVER'
		GROUP BY c.table_name HAVING c.table_name = 'executions' OR bool_or(c.column_name IN ('execution_id', 'step_id'))
		ORDER BY c.table_name`)
	if err != nil {
		return nil, fmt.Errorf("look at the tables: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t tableColumns, err error) {
		return t, row.Scan(&t.name, &t.columns)
	})
}

// Ids of copies: in the order of their making, as those of the service are.
const (
	executionOfCopy = `('01900000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid`
	stepOfCopy      = `('01900000-0000-7000-9000-' || lpad(to_hex(g), 12, '0'))::uuid`
)

// copyRows is a statement that copies the pattern ($1) for the numbers from $2 to $3.
func (t tableColumns) copyRows() string {
	var names, values []string
	belongs := ""
	for _, column := range t.columns {
		value := "t." + pgx.Identifier{column}.Sanitize()
		switch {
		case t.name == "executions" && column == "id":
			value, belongs = executionOfCopy, "t.id = $1"
		case t.name == "steps" && column == "id":
			value = stepOfCopy
		case column == "execution_id":
			value, belongs = executionOfCopy, "t.execution_id = $1"
		case column == "step_id":
			value = stepOfCopy
			if belongs == "" {
				belongs = "t.step_id IN (SELECT s.id FROM steps s WHERE s.execution_id = $1)"
			}
		case column == "idempotency_key":
			value = "'filler-' || g"
		case column == "available_at":
			value = "now() - interval '1 hour' + g * interval '1 microsecond'"
		}
		names, values = append(names, pgx.Identifier{column}.Sanitize()), append(values, value)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %[1]s t, generate_series($2::bigint, $3::bigint) g WHERE %[4]s ORDER BY g",
		pgx.Identifier{t.name}.Sanitize(), strings.Join(names, ", "), strings.Join(values, ", "), belongs)
}
