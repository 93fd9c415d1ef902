package faults

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// goOnLimit is within which the others go on, whatever became of one.
const goOnLimit = 10 * time.Second

// frozenFor is longer than idle_in_transaction_session_timeout.
func frozenFor() time.Duration { return sized(6*time.Second, 15*time.Second) }

// TestReplicasKilledAndFrozen_OthersGoOn: one replica after the other is killed, frozen
// wherever it is, and frozen inside a transaction with rows locked. The others go on while it
// lasts, nothing that was answered OK is lost, and nothing else has to be restarted.
func TestReplicasKilledAndFrozen_OthersGoOn(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{ownDatabase: true})
	l := startLoad(t, c, loadConfig{producers: 8, workers: sized(25, 50), executions: sized(300, 20_000), pause: sized(150*time.Millisecond, 10*time.Millisecond)})
	l.progress(30*time.Second, "before any fault")

	first := c.replicas[0]
	first.kill()
	othersGoOn(t, c, l, first, "after kill -9")
	first.start()
	servesAgain(t, first)

	began := time.Now()
	c.replicas[1].freeze()
	othersGoOn(t, c, l, c.replicas[1], "during a freeze")
	time.Sleep(frozenFor() - time.Since(began))
	c.replicas[1].thaw()
	servesAgain(t, c.replicas[1])

	freezeInTransaction(t, c, l, c.replicas[2])
	servesAgain(t, c.replicas[2])
	holdRows(t, c, l)

	for _, r := range c.replicas {
		if !r.running() {
			t.Errorf("%s has ended", r.name)
		}
	}
	l.finish()
}

// othersGoOn waits until each other replica serves a newcomer, and until the load goes on,
// whose clients have to find out first whom to avoid.
func othersGoOn(t *testing.T, c *cluster, l *load, gone *replica, when string) {
	t.Helper()
	var took []time.Duration
	for _, r := range c.replicas {
		if r != gone {
			took = append(took, servesAgain(t, r))
		}
	}
	t.Logf("%s: the others served newcomers within %v, the load went on within %s more", when, took, l.progress(goOnLimit, when))
}

// servesAgain waits until a replica itself gives new work out and takes it back.
func servesAgain(t *testing.T, r *replica) time.Duration {
	t.Helper()
	c := newClient(t, &recorder{}, []string{r.addr})
	p := c.peers[0]
	ctx, cancel := context.WithTimeout(t.Context(), goOnLimit)
	defer cancel()
	began := time.Now()
	note := insist(ctx, c, callLimit, call{kind: kindGet}, func(ctx context.Context, p *peer, _ *call) error {
		_, err := p.executions.ListExecutions(ctx, &leaseholdv1.ListExecutionsRequest{PageSize: 1})
		return err
	})
	if note.code != codes.OK {
		t.Fatalf("%s does not serve within %s: %s %s", r.name, goOnLimit, note.code, note.message)
	}
	capability := "newcomer." + uuid.NewString()
	enqueue(t, p, 1, capability)
	h := newHand(t, p, 1, capability)
	if err := h.succeed(t.Context(), p, h.take(p, 1, 10*time.Second)[0]); err != nil {
		t.Fatalf("report through %s: %v", r.name, err)
	}
	if took := time.Since(began); took > goOnLimit {
		t.Errorf("%s served a newcomer only after %s", r.name, took)
	}
	return time.Since(began).Round(time.Millisecond)
}

// sessionsInTransaction are the sessions of a replica that wait for it in the middle of a
// transaction with rows of executions locked. The short pause lets statements end that were
// under way when it froze.
const sessionsInTransaction = `SELECT array_agg(a.pid) FROM pg_stat_activity a
	WHERE a.usename = $1 AND a.state = 'idle in transaction' AND a.backend_xid IS NOT NULL
	AND EXISTS (SELECT FROM pg_locks k WHERE k.pid = a.pid AND k.relation = 'executions'::regclass
		AND k.mode IN ('RowShareLock', 'RowExclusiveLock'))`

// freezeInTransaction freezes a replica until it is caught in the act. PostgreSQL then ends
// that transaction, and nobody waits for it any longer.
func freezeInTransaction(t *testing.T, c *cluster, l *load, r *replica) {
	t.Helper()
	var sessions []int32
	var began time.Time
	tries := 0
	eventually(t, time.Minute, "frozen inside a transaction", func() bool {
		tries++
		began = time.Now()
		r.freeze()
		time.Sleep(20 * time.Millisecond)
		if err := c.db.QueryRow(t.Context(), sessionsInTransaction, r.role).Scan(&sessions); err != nil {
			t.Fatal(err)
		}
		if len(sessions) > 0 {
			return true
		}
		r.thaw()
		time.Sleep(rand.N(20 * time.Millisecond))
		return false
	})
	t.Logf("frozen inside a transaction (try %d, %d sessions)", tries, len(sessions))
	othersGoOn(t, c, l, r, "with a replica frozen inside a transaction")
	ended := eventually(t, goOnLimit, "the transaction ended by PostgreSQL", func() bool {
		return c.number(`SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1) AND usename = $2`, sessions, r.role) == 0
	})
	t.Logf("PostgreSQL ended its transactions after %s more", ended)
	time.Sleep(frozenFor() - time.Since(began))
	r.thaw()
}

// holdRows does on purpose what such a freeze does by chance: a session with the service's
// settings locks an execution and its lease, and is silent. Everybody else goes on at once,
// and the report that needs those rows is answered when PostgreSQL has ended the session.
func holdRows(t *testing.T, c *cluster, l *load) {
	t.Helper()
	one := newClient(t, &recorder{}, []string{c.replicas[0].addr})
	p := one.peers[0]
	enqueue(t, p, 1, "held")
	h := newHand(t, p, 1, "held")
	lease := h.take(p, 1, time.Minute)[0]

	cfg, err := pgx.ParseConfig(c.url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "5s"
	cfg.RuntimeParams["lock_timeout"] = "2s"
	session, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close(context.Background()) }() // PostgreSQL ended it
	for _, statement := range []string{
		"BEGIN",
		"SELECT id FROM executions WHERE id = '" + lease.GetExecutionId() + "' FOR NO KEY UPDATE",
		"SELECT attempt_id FROM leases WHERE attempt_id = '" + lease.GetAttemptId() + "' FOR UPDATE",
	} {
		if _, err := session.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	reported := make(chan call, 1)
	go func() {
		reported <- insist(t.Context(), one, callLimit, call{kind: kindReport}, func(ctx context.Context, p *peer, _ *call) error {
			return h.succeed(ctx, p, lease)
		})
	}()
	t.Logf("with an execution and its lease locked the others went on within %s", l.progress(goOnLimit, "with rows held"))
	select {
	case note := <-reported:
		if note.code != codes.OK {
			t.Errorf("the report was answered %s: %s", note.code, note.message)
		}
	case <-time.After(goOnLimit):
		t.Fatalf("the report of a held attempt was not answered within %s", goOnLimit)
	}
	t.Logf("the report of the held attempt was answered OK after %s", time.Since(began))
	if _, err := session.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("the silent session still lives: did anybody wait for it?")
	}
}
