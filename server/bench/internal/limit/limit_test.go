package limit

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
	"github.com/leasehold/leasehold/server/internal/testdb"
)

// databases are the tests' own.
var databases testdb.Server

func TestMain(m *testing.M) { os.Exit(databases.Main(m)) }

const (
	batch  = 200
	rounds = 2
)

// TestLimit_WritesTheServicesRows: pgbench's scripts write as many rows to every table as the
// service's own store does for the same executions, so that the limit is one of the same work.
func TestLimit_WritesTheServicesRows(t *testing.T) {
	t.Parallel()
	if _, err := find(t.Context()); err != nil {
		t.Skip(err)
	}
	service, alone := databases.New(t), databases.New(t)
	serve(t, service)
	r, err := Run(t.Context(), Config{URL: alone, Count: batch * rounds, Batch: batch, Clients: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Count != batch*rounds || r.Rate <= 0 || r.Lost != 0 || r.Doubled != 0 {
		t.Errorf("the limit says %+v", r)
	}
	want, got := written(t, service), written(t, alone)
	for _, table := range slices.Sorted(maps.Keys(want)) {
		if got[table] != want[table] {
			t.Errorf("%s: the limit wrote %+v, the service writes %+v", table, got[table], want[table])
		}
	}
	if len(want) < 8 || want["executions"] != (rows{batch * rounds, 2 * batch * rounds, 0}) {
		t.Errorf("the service wrote %v: is that all?", want)
	}
}

// serve has the store do what the service does with executions of P2.
func serve(t *testing.T, url string) {
	t.Helper()
	ctx := t.Context()
	store, err := postgres.Open(ctx, postgres.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	registration := scheduler.Registration{Namespace: "default", Name: "w", Capabilities: []string{"bench"}, Slots: batch}
	worker, err := store.Register(ctx, registration, uuid.New(), uuid.New())
	if err != nil {
		t.Fatal(err)
	}
	enqueue(t, store)
	for range rounds {
		var reports []scheduler.Report
		leases := lease(t, store, worker)
		for _, l := range leases {
			reports = append(reports, scheduler.Report{
				AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Outcome: task.Outcome{State: task.AttemptSucceeded},
			})
		}
		results, err := store.Report(ctx, reports, false)
		if err != nil || len(results) != batch {
			t.Fatalf("%d reports: %v", len(results), err)
		}
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
}

func enqueue(t *testing.T, store *postgres.Store) {
	t.Helper()
	var list []scheduler.NewExecution
	for i := range batch * rounds {
		spec := &task.ExecutionSpec{
			Namespace: "default", Name: "bench", IdempotencyKey: fmt.Sprint(i), CancelGrace: task.DefaultCancelGrace,
			Steps: []task.StepSpec{{
				Name: "step", Capability: "bench", StartToClose: time.Hour, Input: &task.Payload{JSON: true, Body: fmt.Appendf(nil, `{"n":%d}`, i)},
			}},
		}
		list = append(list, scheduler.NewExecution{
			Spec: spec, Hash: spec.Fingerprint(), IDs: task.IDs{Execution: uuid.New(), Steps: []uuid.UUID{uuid.New()}},
		})
	}
	if _, err := store.Enqueue(t.Context(), list, true, true); err != nil {
		t.Fatal(err)
	}
}

// lease is a round of the dispatcher, for polls of 50 leases each.
func lease(t *testing.T, store *postgres.Store, worker scheduler.Session) []scheduler.LeaseView {
	t.Helper()
	offer := task.Offer{WorkerID: worker.WorkerID, Namespace: "default", Capabilities: map[string]bool{"bench": true}, Room: batch, Bytes: 1 << 20}
	claim := scheduler.ClaimCommand{ClaimID: uuid.New(), Limit: batch, Expires: time.Minute, Offers: []task.Offer{offer}}
	claimed, err := store.Claim(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	c := scheduler.DispatchCommand{ClaimID: claim.ClaimID}
	var poll string
	for i, w := range claimed.Requests {
		if i%leasesOfPoll == 0 {
			poll = uuid.NewString()
		}
		c.Items = append(c.Items, scheduler.DispatchItem{
			Waiting: w, AttemptID: uuid.New(), WorkerID: worker.WorkerID, SessionID: worker.SessionID,
			RequestID: poll, Duration: time.Minute,
		})
	}
	done, err := store.Dispatch(t.Context(), c)
	if err != nil || len(done.Granted) != batch {
		t.Fatalf("%d granted: %v", len(done.Granted), err)
	}
	views, err := store.Contents(t.Context(), slices.Collect(maps.Keys(done.Granted)))
	if err != nil {
		t.Fatal(err)
	}
	return views
}

// rows are those that were written to a table.
type rows struct{ inserted, updated, deleted int64 }

// written reads PostgreSQL's counters once they stand still: sessions tell of their last
// statements when they end.
func written(t *testing.T, url string) map[string]rows {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for others := 1; others > 0; {
		const q = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`
		if err := conn.QueryRow(ctx, q).Scan(&others); err != nil {
			t.Fatal(err)
		}
	}
	found := map[string]rows{}
	// Who works and which schema is there is set up once, not written for each execution.
	list, err := conn.Query(ctx, `SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables
		WHERE relname NOT IN ('workers', 'sessions', 'goose_db_version') ORDER BY relname`)
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var r rows
	if _, err := pgx.ForEachRow(list, []any{&name, &r.inserted, &r.updated, &r.deleted}, func() error {
		found[name] = r
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}
