package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// plan is what EXPLAIN tells of a statement, as far as it matters here.
type plan struct {
	NodeType string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Cond     string  `json:"Index Cond"`
	Filter   string  `json:"Filter"`
	Rows     float64 `json:"Actual Rows"`
	Removed  float64 `json:"Rows Removed by Filter"`
	Loops    float64 `json:"Actual Loops"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Plans    []plan  `json:"Plans"`
}

// walk calls f for every node.
func (p *plan) walk(f func(*plan)) {
	f(p)
	for i := range p.Plans {
		p.Plans[i].walk(f)
	}
}

// planned is one statement that the store sent, with its plan.
type planned struct {
	name string
	root plan
}

func (p planned) buffers() int { return p.root.Hit + p.root.Read }

// explainer explains every statement of the store's just before it is sent, in the same
// transaction and session, as a prepared statement with the same arguments, and takes back what
// that did.
type explainer struct {
	t    *testing.T
	mu   sync.Mutex
	on   bool
	seen []planned
}

type explaining struct{}

// TraceQueryStart explains a statement.
func (e *explainer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	e.explain(ctx, conn, []*pgx.QueuedQuery{{SQL: data.SQL, Arguments: data.Args}})
	return ctx
}

// TraceBatchStart explains statements that are sent together.
func (e *explainer) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	e.explain(ctx, conn, data.Batch.QueuedQueries)
	return ctx
}

// TraceBatchQuery has nothing to do.
func (e *explainer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd has nothing to do.
func (e *explainer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (e *explainer) explain(ctx context.Context, conn *pgx.Conn, list []*pgx.QueuedQuery) {
	e.mu.Lock()
	on := e.on
	e.mu.Unlock()
	if !on || ctx.Value(explaining{}) != nil {
		return
	}
	list = slices.DeleteFunc(slices.Clone(list), func(q *pgx.QueuedQuery) bool { // BEGIN and COMMIT
		_, named := queryName(q.SQL)
		return !named
	})
	if len(list) == 0 {
		return
	}
	plans, err := explain(context.WithValue(ctx, explaining{}, true), conn, list)
	if err != nil {
		e.t.Errorf("explain: %v", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, plans...)
}

// TraceQueryEnd has nothing to do.
func (e *explainer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// during returns the plans of what a call sends.
func (e *explainer) during(f func()) []planned {
	e.set(true)
	f()
	e.set(false)
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.seen
	e.seen = nil
	return list
}

func (e *explainer) set(on bool) {
	e.mu.Lock()
	e.on = on
	e.mu.Unlock()
}

func queryName(sql string) (string, bool) {
	rest, ok := strings.CutPrefix(sql, "-- name: ")
	name, _, _ := strings.Cut(rest, " ")
	return name, ok
}

// explain explains statements one after the other, each with what those before it have done, and
// takes it all back.
func explain(ctx context.Context, conn *pgx.Conn, list []*pgx.QueuedQuery) (plans []planned, err error) {
	begin, end := "BEGIN", "ROLLBACK"
	if conn.PgConn().TxStatus() != 'I' {
		begin, end = "SAVEPOINT explained", "ROLLBACK TO SAVEPOINT explained; RELEASE SAVEPOINT explained"
	}
	if _, err := conn.PgConn().Exec(ctx, begin).ReadAll(); err != nil {
		return nil, err
	}
	for _, q := range list {
		name, _ := queryName(q.SQL)
		p, err := explainOne(ctx, conn, q.SQL, q.Arguments)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		plans = append(plans, planned{name, p})
	}
	_, err = conn.PgConn().Exec(ctx, end).ReadAll()
	return plans, err
}

func explainOne(ctx context.Context, conn *pgx.Conn, sql string, args []any) (plan, error) {
	literals, err := literalsOf(ctx, conn, sql, args)
	if err != nil {
		return plan{}, err
	}
	execute := "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE explained"
	if len(literals) > 0 {
		execute += "(" + strings.Join(literals, ", ") + ")"
	}
	if _, err := conn.PgConn().Exec(ctx, "PREPARE explained AS "+sql).ReadAll(); err != nil {
		return plan{}, err
	}
	results, err := conn.PgConn().Exec(ctx, execute).ReadAll()
	if err != nil {
		return plan{}, err
	}
	var plans []struct{ Plan plan }
	if err := json.Unmarshal(results[0].Rows[0][0], &plans); err != nil {
		return plan{}, err
	}
	_, err = conn.PgConn().Exec(ctx, "DEALLOCATE explained").ReadAll()
	return plans[0].Plan, err
}

// literalsOf writes arguments as SQL, as the types that PostgreSQL finds for them.
func literalsOf(ctx context.Context, conn *pgx.Conn, sql string, args []any) ([]string, error) {
	described, err := conn.PgConn().Prepare(ctx, "", sql, nil)
	if err != nil {
		return nil, err
	}
	literals := make([]string, len(args))
	for i, arg := range args {
		text, err := conn.TypeMap().Encode(described.ParamOIDs[i], pgx.TextFormatCode, arg, []byte{}) // nil would be NULL, also for an empty text
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i+1, err)
		}
		literals[i] = "NULL"
		if text != nil {
			literals[i] = "'" + strings.ReplaceAll(string(text), "'", "''") + "'"
		}
	}
	return literals, nil
}

// scans are the small tables that statements read as a whole, and say so.
var scans = map[string][]string{
	"SweepWork": {"leases", "workers"}, "ExpiredLeases": {"leases", "workers"}, "LockAllLeases": {"leases"}, "CreditLeases": {"leases"},
	"CancelingExecutions": {"leases"}, "TouchLiveWorkers": {"workers"}, "RunningOfCapabilities": {"leases"},
}

// small is how many rows a table may have that is read as a whole.
const small = 1000

// whole tells whether a node reads a table by nothing that bounds it.
func (p *plan) whole() bool {
	return p.Relation != "" && (p.NodeType == "Seq Scan" || strings.HasPrefix(p.NodeType, "Index") && p.Cond == "")
}

// check fails unless a statement reads its tables by the indexes that it is meant for. A plan
// that is made anew each time (custom) may read the whole of a table that is small at that time;
// one that is kept may do so with the tables that stay small.
func (p planned) check(t *testing.T, when string, custom bool) {
	t.Helper()
	read := map[string]bool{}
	p.root.walk(func(n *plan) {
		if !n.whole() || slices.Contains(scans[p.name], n.Relation) {
			return
		}
		if (n.Rows+n.Removed)*n.Loops > small || !custom && !slices.Contains([]string{"leases", "workers", "capabilities"}, n.Relation) {
			t.Errorf("%s: %s reads the whole of %s: %s", when, p.name, n.Relation, p.indexes())
		}
		read[n.Relation] = true
	})
	for _, want := range intended[p.name] {
		relation, index, _ := strings.Cut(want, " ")
		found := read[relation]
		p.root.walk(func(n *plan) { found = found || n.Index == index })
		if !found {
			t.Errorf("%s: %s does not read %s by %s: %s", when, p.name, relation, index, p.indexes())
		}
	}
}

func (p planned) indexes() string {
	var list []string
	p.root.walk(func(n *plan) {
		if n.Relation != "" || n.Index != "" {
			list = append(list, fmt.Sprintf("%s on %s by %s %s, filter %s", n.NodeType, n.Relation, n.Index, n.Cond, n.Filter))
		}
	})
	return "\n\t" + strings.Join(list, "\n\t")
}

// intended are the indexes of the statements on the path of the work.
var intended = map[string][]string{
	"ClaimRequests":       {"scheduling_requests scheduling_requests_claim", "scheduling_requests scheduling_requests_pkey"},
	"SurveyRequests":      {"scheduling_requests scheduling_requests_claim"},
	"FindWorkers":         {"workers workers_pkey", "drains drains_pkey"},
	"LockWorkers":         {"workers workers_pkey"},
	"WorkerLoads":         {"workers workers_pkey", "drains drains_pkey", "lease_floors lease_floors_pkey", "leases leases_worker"},
	"CountLeases":         {"workers workers_pkey", "lease_floors lease_floors_pkey", "leases leases_worker"},
	"LockClaimedRequests": {"scheduling_requests scheduling_requests_pkey"},
	"AttemptsOfNumber":    {"attempts attempts_step_id_number_key"},
	"LockCapabilities":    {"capabilities capabilities_pkey"},
	"LockExecutions":      {"executions executions_pkey"},
	"StepsByID":           {"steps steps_pkey", "attempts attempts_step_id_number_key"},
	"UpdateExecutions":    {"executions executions_pkey"},
	"UpdateSteps":         {"steps steps_pkey"},
	"DeleteRequests":      {"scheduling_requests scheduling_requests_pkey"},
	"FindAttempts":        {"attempts attempts_pkey", "steps steps_pkey"},
	"LockLeases":          {"leases leases_pkey"},
	"DeleteLeases":        {"leases leases_pkey"},
	"EndLeases":           {"leases leases_pkey"},
	"EndAttempts":         {"attempts attempts_pkey"},
	"InsertRequests":      {"steps steps_pkey"},
	"RenewLeases":         {"leases leases_pkey", "workers workers_pkey", "drains drains_pkey"},
	"SetProgress":         {"attempts attempts_pkey"},
	"LeaseContents":       {"leases leases_pkey", "attempts attempts_pkey", "steps steps_pkey", "executions executions_pkey"},
	"FreeRequests":        {"scheduling_requests scheduling_requests_pkey"},
	"AnsweredRequests":    {"lease_requests lease_requests_pkey"},
	"LateAttempts":        {"attempts attempts_pkey", "steps steps_pkey", "executions executions_pkey"},
	"DropRequests":        {"scheduling_requests scheduling_requests_pkey"},
	"OpenStepIDs":         {"steps steps_execution_id_ordinal_key"},
	"DeleteExpiredLeases": {"leases leases_pkey"},
	"MovedExecutions":     {"executions executions_pkey"},
	"ExecutionsByID":      {"executions executions_pkey"},
	"ListTimeline": {"timeline_entries timeline_entries_pkey", "executions executions_pkey", "steps steps_execution_id_ordinal_key",
		"attempts attempts_step_id_number_key"},
	"StepsByName": {"steps steps_execution_id_ordinal_key"},

	"WaitingOfCapabilities":  {"scheduling_requests scheduling_requests_claim"},
	"RunningOfCapabilities":  {"steps steps_pkey"},
	"CapacityOfCapabilities": {"workers workers_open", "leases leases_worker"},
	"OutcomesOfCapabilities": {"attempt_tallies attempt_tallies_capability"},
	"ListCapabilities":       {"capabilities capabilities_namespace_name_key"},
	"ListWorkers":            {"workers workers_namespace_name_key", "leases leases_worker"},
	"LeasesOfWorker":         {"leases leases_worker", "attempts attempts_pkey", "steps steps_pkey", "executions executions_pkey"},
	"CapableWorkers":         {"workers workers_open", "leases leases_worker"},
	"CountAhead":             {"scheduling_requests scheduling_requests_claim", "workers workers_pkey"},
	"RequestOfStep":          {"scheduling_requests scheduling_requests_pkey"},
	"StepOfName":             {"steps steps_execution_id_ordinal_key"},
}
