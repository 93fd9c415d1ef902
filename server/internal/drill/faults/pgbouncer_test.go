package faults

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB90_PgBouncer: two replicas reach PostgreSQL through PgBouncer, which gives each transaction
// a session of its choice, out of four. Attempts succeed, fail, lapse and are renewed, executions
// are cancelled, and PgBouncer is killed in the middle. Everything ends as it was answered. With a
// second URL that leads to PostgreSQL itself replicas hear of each other's work; without one they
// do not pretend to listen, and find it by looking.
func TestB90_PgBouncer(t *testing.T) {
	require(t, dependency{"pgbouncer", "pgbouncer"})
	for name, direct := range map[string]bool{"hints directly": true, "by looking alone": false} {
		t.Run(name, func(t *testing.T) {
			alongside(t)
			throughBouncer(t, direct)
		})
	}
}

func throughBouncer(t *testing.T, direct bool) {
	t.Helper()
	c := newUnstarted(t, 2)
	c.giveSettings()
	b := startBouncer(t, bouncerConfig{host: c.host(), roles: c.roles(), ignored: ignoredSettings})
	listeners := 0
	for _, r := range c.replicas {
		r.args = append(r.args, "--migrate=false")
		if direct {
			r.args = append(r.args, "--migrate", "--direct-database-url", r.url)
			listeners++
		}
		r.url = b.through(r.url, "cache_describe")
	}
	c.launch()
	l := startLoad(t, c, loadConfig{workers: 8, executions: sized(150, 2000), pause: 20 * time.Millisecond})
	l.progress(30*time.Second, "through PgBouncer")
	for range sized(1, 5) {
		b.kill()
		time.Sleep(sized(500*time.Millisecond, 3*time.Second)) // how long it is away
		b.start()
		l.progress(30*time.Second, "after a kill of PgBouncer")
	}
	c.cancelOne()
	l.finish()
	if n := c.listeners(); n != listeners {
		t.Errorf("%d replicas listen, want %d", n, listeners)
	}
	took := c.across(10)
	if middle := took[len(took)/2]; direct && middle > 500*time.Millisecond { // by looking it takes 0.8 s, each time
		t.Errorf("a lease came %s after its enqueue at another replica: no hint was heard", middle)
	}
	t.Logf("from an enqueue at one replica to the lease at the other: %v", took)
	for _, r := range c.replicas {
		log, err := os.ReadFile(r.logPath)
		if err != nil {
			t.Fatal(err)
		}
		if deaf := strings.Contains(string(log), "hints of other replicas are not heard"); deaf == direct {
			t.Errorf("%s: the log says that it does not hear: %t, want %t", r.name, deaf, !direct)
		}
	}
}

// cancelOne cancels an execution that nobody works on.
func (c *cluster) cancelOne() {
	c.t.Helper()
	a, b := dial(c.t, c.replicas[0].addr), dial(c.t, c.replicas[1].addr)
	made, err := a.executions.EnqueueExecution(c.t.Context(), &leaseholdv1.EnqueueExecutionRequest{
		Name: "unwanted", IdempotencyKey: uuid.NewString(), Steps: []*leaseholdv1.StepSpec{{Name: "only", Capability: "nobody"}},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	id := made.GetExecution().GetId()
	done, err := b.executions.CancelExecution(c.t.Context(), &leaseholdv1.CancelExecutionRequest{ExecutionId: id, Reason: "on purpose"})
	if err != nil || done.GetExecution().GetState() != leaseholdv1.ExecutionState_EXECUTION_STATE_CANCELED {
		c.t.Fatalf("cancelled: %v, %v", done, err)
	}
}

// across is how long it took n times from an enqueue at one replica to the lease that a poll parked
// at the other one got, the shortest first.
func (c *cluster) across(n int) []time.Duration {
	c.t.Helper()
	a, b := dial(c.t, c.replicas[0].addr), dial(c.t, c.replicas[1].addr)
	h := newHand(c.t, b, 1, "across")
	var took []time.Duration
	for range n {
		parked := h.park(b, 50*time.Second, time.Minute)
		time.Sleep(200 * time.Millisecond) // it is parked by then, mostly
		asked := time.Now()
		enqueue(c.t, a, 1, "across")
		got := <-parked
		if got.err != nil || len(got.leases) != 1 {
			c.t.Fatalf("got %v, %v; want a lease", got.leases, got.err)
		}
		took = append(took, got.at.Sub(asked))
		if err := h.succeed(c.t.Context(), b, got.leases[0]); err != nil {
			c.t.Fatal(err)
		}
	}
	slices.Sort(took)
	return took
}

// TestB90_PgBouncerHalfSetUpIsRefused: a server whose sessions would half work behind PgBouncer does
// not start, and says what to do.
func TestB90_PgBouncerHalfSetUpIsRefused(t *testing.T) {
	require(t, dependency{"pgbouncer", "pgbouncer"})
	alongside(t)
	c := newUnstarted(t, 1)
	r := c.replicas[0]
	t.Cleanup(r.end)
	direct := r.url
	refused := func(what, url, want string, args ...string) {
		t.Helper()
		r.url, r.args = url, append([]string{"--database-wait", "2s"}, args...)
		before, _ := os.ReadFile(r.logPath) // none yet
		r.launch()
		select {
		case <-r.proc.exited:
		case <-time.After(startLimit):
			t.Fatalf("%s: the server runs", what)
		}
		log, err := os.ReadFile(r.logPath)
		if said := string(log[len(before):]); err != nil || !strings.Contains(said, want) {
			t.Errorf("%s: it said %q, want %q (%v)", what, said, want, err)
		}
	}
	bouncing := func(host, ignored string) *bouncer {
		return startBouncer(t, bouncerConfig{host: host, roles: c.roles(), ignored: ignored})
	}
	b := bouncing(c.host(), "")
	refused("parameters are refused", b.through(direct, "cache_describe"), "sessions do not get their settings")
	b = bouncing(c.host(), ignoredSettings)
	refused("the role lacks the settings", b.through(direct, "cache_describe"), "sessions do not get their settings")
	c.giveSettings()
	b = bouncing(c.host(), ignoredSettings) // the old one's sessions are from before
	refused("statements are prepared", b.through(direct, ""), "add default_query_exec_mode=cache_describe")
	refused("types are guessed", b.through(direct, "exec"), "default_query_exec_mode must be", "--migrate=false")
	refused("types are guessed", b.through(direct, "simple_protocol"), "default_query_exec_mode must be", "--migrate=false")
	refused("migrations share a session", b.through(direct, "cache_describe"), "this needs a session of its own")
	away := bouncing(fmt.Sprintf("127.0.0.1:%d", freePort(t)), ignoredSettings)
	refused("PostgreSQL is away", away.through(direct, "cache_describe"), "the database could not be reached for 2s")
	if _, err := c.db.Exec(t.Context(), "ALTER ROLE "+r.role+" NOLOGIN"); err != nil {
		t.Fatal(err)
	}
	b = bouncing(c.host(), ignoredSettings) // it has the code of parameters that are refused
	refused("PostgreSQL lets nobody in", b.through(direct, "cache_describe"), "the database could not be reached for 2s")
}

// TestB90_TheReadmeHasTheSettings that are tried here.
func TestB90_TheReadmeHasTheSettings(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(fmt.Sprintf(roleSettings, "leasehold") + "\nignore_startup_parameters = " + ignoredSettings + "\n") {
		if line = strings.TrimSpace(line); !strings.Contains(string(readme), line+"\n") {
			t.Errorf("the README lacks %q", line)
		}
	}
}
