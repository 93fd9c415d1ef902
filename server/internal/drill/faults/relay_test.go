package faults

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/api/consumer"
	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/testsink"
)

// newRelayed starts replicas that publish every event to a sink.
func newRelayed(t *testing.T, cfg clusterConfig, sink string) *cluster {
	t.Helper()
	cfg.args = append(cfg.args, "--sink", sink, "--events", "all", "--outbox-source", "/faults")
	return newCluster(t, cfg)
}

// events is how many events have a status.
func (c *cluster) events(status string) int {
	c.t.Helper()
	return int(c.number(`SELECT count(*) FROM outbox_events WHERE status = $1`, status))
}

// awaitPublished waits until all events are sent.
func (c *cluster) awaitPublished(limit time.Duration) {
	c.t.Helper()
	eventually(c.t, limit, "all events PUBLISHED", func() bool {
		return c.number(`SELECT count(*) FROM outbox_events WHERE status <> 'PUBLISHED'`) == 0
	})
}

// claimsEnd waits for the claims of a dead replica. In the short form they are ended by hand,
// for 30 s are long.
func (c *cluster) claimsEnd() {
	c.t.Helper()
	if full() {
		return
	}
	if _, err := c.db.Exec(c.t.Context(), `UPDATE outbox_heads SET claim_expires_at = now() WHERE claim_id IS NOT NULL`); err != nil {
		c.t.Fatal(err)
	}
}

// claimLimit is within which another relay takes over what a dead one had claimed.
const claimLimit = time.Minute

// sameEvents fails the test unless what arrived is what was committed, in order. It gives what
// is on its way some time.
func sameEvents(t *testing.T, c *cluster, r *testsink.Record) {
	t.Helper()
	rows, err := c.db.Query(t.Context(), `SELECT id::text FROM outbox_events`)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(committed) == 0 {
		t.Fatalf("%d events were committed: %v", len(committed), err)
	}
	for began := time.Now(); len(r.IDs()) < len(committed) && time.Since(began) < time.Minute; {
		time.Sleep(50 * time.Millisecond)
	}
	arrived := r.IDs()
	for _, id := range committed {
		if !arrived[id] {
			t.Errorf("event %s was committed, and did not arrive", id)
		}
		delete(arrived, id)
	}
	for id := range arrived {
		t.Errorf("event %s arrived, and was not committed", id)
	}
	for _, broken := range r.CheckOrder() {
		t.Error(broken)
	}
	t.Logf("%d events, %d repeats", len(committed), r.Repeats())
}

// handled has a consumer with an inbox handle deliveries, and counts what became of them.
func handled(t *testing.T, list []*testsink.Delivery) map[consumer.Outcome]int {
	t.Helper()
	ctx := t.Context()
	db, err := pgx.Connect(ctx, shared.databases.New(t)) // of the consumer's own
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.Background()) }()
	if _, err := db.Exec(ctx, consumer.InboxMigration+`CREATE TABLE told (event_id text)`); err != nil {
		t.Fatal(err)
	}
	inbox, outcomes := consumer.Inbox{Consumer: "drill", Order: consumer.Gapless}, map[consumer.Outcome]int{}
	for _, d := range list {
		e, err := consumer.ParseEvent(d.Body)
		if err != nil {
			t.Fatal(err)
		}
		err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			outcome, err := inbox.Handle(ctx, tx, e, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO told VALUES ($1)`, e.ID)
				return err
			})
			outcomes[outcome]++
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var told int
	if err := db.QueryRow(ctx, `SELECT count(*) FROM told`).Scan(&told); err != nil || told != outcomes[consumer.Handled] {
		t.Errorf("%d facts were written (%v), want %d", told, err, outcomes[consumer.Handled])
	}
	return outcomes
}

// moment is a sink that has an event, and whose acknowledgement is held back.
type moment struct {
	url     string
	arrived *testsink.Record // each publish
	hold    func()           // before the event is published
	reached func() bool      // the sink has it
	letGo   func()           // the acknowledgement
	after   func()           // looks at the sink in the end
}

func heldWebhook(t *testing.T) *moment {
	gate := make(chan struct{})
	r := testsink.StartReceiver(t, func(_ http.ResponseWriter, _ *http.Request, d *testsink.Delivery) {
		if d.Before == 0 {
			<-gate
		}
	})
	return &moment{
		url: r.URL, arrived: r.Record, hold: func() {}, letGo: func() { close(gate) },
		reached: func() bool { return len(r.Deliveries()) > 0 }, after: func() {},
	}
}

func heldNATS(t *testing.T) *moment {
	n := testsink.StartNATS(t)
	n.PutStream(testsink.Subjects)
	between, arrived := newProxy(t, n.Addr()), &testsink.Record{}
	n.Tap(arrived)
	return &moment{
		url: "nats://" + between.Addr(), arrived: arrived, hold: func() { between.Hold(true) },
		reached: func() bool { return n.Messages() == 1 }, letGo: between.Release,
		after: func() {
			if m := n.Messages(); m != 1 {
				t.Errorf("the stream has %d messages, want 1: it knows the repeat by its id", m)
			}
		},
	}
}

// TestRelay_KilledBetweenPublishAndConfirm: the sink has the event, and the replica dies by
// SIGKILL before it hears of it, or before it has written that down. The event comes again,
// with the same id, by which a consumer's inbox ignores it. Broken once: events marked PUBLISHED when they are claimed, and a new id
// at each publish.
func TestRelay_KilledBetweenPublishAndConfirm(t *testing.T) {
	for name, c := range map[string]struct {
		sink         func(*testing.T) *moment
		acknowledged bool
	}{
		"before the webhook answers":        {heldWebhook, false},
		"after the webhook's answer":        {heldWebhook, true},
		"before NATS acknowledges":          {heldNATS, false},
		"after the acknowledgement of NATS": {heldNATS, true},
	} {
		t.Run(name, func(t *testing.T) {
			alongside(t)
			killedBetween(t, c.sink(t), c.acknowledged)
		})
	}
}

func killedBetween(t *testing.T, sink *moment, acknowledged bool) {
	t.Helper()
	c := newRelayed(t, clusterConfig{replicas: 1, behindProxies: true}, sink.url)
	r, database := c.replicas[0], c.proxies[0]
	sink.hold()
	enqueue(t, dial(t, r.addr), 1, "nobody")
	eventually(t, 20*time.Second, "the event in the sink", sink.reached)
	if acknowledged {
		database.Hold(false) // it may ask, but PostgreSQL does not hear of it
		sink.letGo()
		time.Sleep(300 * time.Millisecond) // the acknowledgement arrives; nobody tells when
	}
	r.kill()
	database.Cut() // and what it had asked last is lost with it
	if !acknowledged {
		sink.letGo()
	}
	database.Release()
	if n := c.events("PUBLISHING"); n != 1 {
		t.Fatalf("%d events are PUBLISHING: the kill was not between publish and confirm", n)
	}
	r.start()
	c.claimsEnd()
	c.awaitPublished(claimLimit)
	list := sink.arrived.Deliveries()
	if len(list) != 2 || list[0].ID != list[1].ID {
		t.Fatalf("got %d deliveries, want two of one id", len(list))
	}
	if got := handled(t, list); got[consumer.Handled] != 1 || got[consumer.Repeat] != 1 {
		t.Errorf("the inbox of a consumer: %v, want one handled and one repeat", got)
	}
	sink.after()
}

// TestRelay_NothingStaysPublishing: replicas end with events in flight, by SIGTERM and by
// SIGKILL, and start again. After SIGTERM nothing is left PUBLISHING, with a sink that answers
// soon and with one that never does; after SIGKILL nothing stays so. Broken once: a shutdown
// that does not wait for the relay.
func TestRelay_NothingStaysPublishing(t *testing.T) {
	alongside(t)
	const many = 30
	slow := make(chan time.Duration, 1)
	slow <- time.Hour
	r := testsink.StartReceiver(t, func(w http.ResponseWriter, req *http.Request, _ *testsink.Delivery) {
		wait := <-slow
		slow <- wait
		select {
		case <-req.Context().Done():
			w.WriteHeader(http.StatusServiceUnavailable) // nobody hears it
		case <-time.After(wait):
		}
	})
	answersAfter := func(d time.Duration) { <-slow; slow <- d }
	c := newRelayed(t, clusterConfig{replicas: 1}, r.URL)
	one := c.replicas[0]
	arrivals := func(n int) {
		t.Helper()
		eventually(t, 30*time.Second, "the events in flight", func() bool { return len(r.Deliveries()) >= n })
	}
	ends := func(when, status string) {
		t.Helper()
		if took, code := one.terminate(12 * time.Second); code != 0 || took > 10*time.Second {
			t.Errorf("%s: ended with status %d after %s", when, code, took)
		}
		if n := c.events(status); n != many {
			t.Errorf("%s: %d events are %s after SIGTERM, want %d", when, n, status, many)
		}
		if n := c.number(`SELECT count(*) FROM outbox_events WHERE attempts > 0 AND status <> 'PUBLISHED' OR last_error <> ''`); n != 0 {
			t.Errorf("%s: %d events were counted as tried in vain", when, n)
		}
	}
	enqueue(t, dial(t, one.addr), many, "nobody")
	arrivals(many)
	ends("a sink that never answers", "PENDING")

	answersAfter(time.Second + slack()/2)
	one.start()
	arrivals(2 * many)
	ends("a slow sink", "PUBLISHED")

	answersAfter(time.Hour)
	one.start()
	enqueue(t, dial(t, one.addr), many, "nobody")
	arrivals(3 * many)
	one.kill()
	if n := c.events("PUBLISHING"); n != many {
		t.Errorf("%d events are PUBLISHING after SIGKILL, want %d", n, many)
	}
	answersAfter(0)
	one.start()
	c.claimsEnd()
	c.awaitPublished(claimLimit)
	sameEvents(t, c, r.Record)
}

// TestRelay_DeadAfterTheLimit: an event that the sink does not take is DEAD after the limit of
// tries, with the reason, and holds back what comes after it in its execution. Others go on.
// Once the sink takes it, an operator redrives it, and all arrive in order. Broken once: a
// redrive that leaves the head where it is.
func TestRelay_DeadAfterTheLimit(t *testing.T) {
	alongside(t)
	var full atomic.Bool
	full.Store(true)
	r := testsink.StartReceiver(t, func(w http.ResponseWriter, _ *http.Request, d *testsink.Delivery) {
		if d.Type == "leasehold.attempt.v1.leased" && full.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("no room left"))
		}
	})
	c := newRelayed(t, clusterConfig{replicas: 1, args: []string{"--outbox-max-attempts", "2"}}, r.URL)
	p := dial(t, c.replicas[0].addr)
	enqueue(t, p, 1, "dead")
	h := newHand(t, p, 1, "dead")
	if err := h.succeed(t.Context(), p, h.take(p, 1, time.Minute)[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "an event DEAD", func() bool { return c.events("DEAD") == 1 })
	dead := deadEvents(t, p)
	if len(dead) != 1 {
		t.Fatalf("operators see %d DEAD events: %v", len(dead), dead)
	}
	if e := dead[0]; e.GetType() != "leasehold.attempt.v1.leased" || e.GetAttempts() != 2 || !strings.Contains(e.GetLastError(), "500 Internal Server Error: no room left") {
		t.Errorf("operators see %v", e)
	}
	if behind := c.number(`SELECT count(*) FROM outbox_events WHERE aggregate_id::text = $1 AND sequence > $2 AND status = 'PENDING'`,
		dead[0].GetAggregateId(), dead[0].GetSequence()); behind < 3 {
		t.Errorf("%d events wait behind it", behind)
	}
	enqueue(t, p, 1, "nobody")
	eventually(t, 20*time.Second, "another execution's event", func() bool {
		return c.number(`SELECT count(*) FROM outbox_events e WHERE e.status = 'PUBLISHED' AND e.sequence = 1`) == 2
	})
	full.Store(false)
	answer, err := p.operators.RedriveOutboxEvents(t.Context(), &leaseholdv1.RedriveOutboxEventsRequest{
		Status: leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD, Reason: "there is room again",
	})
	if err != nil || answer.GetCount() != 1 {
		t.Fatalf("redrive: %v, %v", answer, err)
	}
	c.awaitPublished(30 * time.Second)
	sameEvents(t, c, r.Record)
}

// deadEvents are the DEAD events as operators see them.
func deadEvents(t *testing.T, p *peer) []*leaseholdv1.OutboxEvent {
	t.Helper()
	var all []*leaseholdv1.OutboxEvent
	req := &leaseholdv1.ListOutboxEventsRequest{Statuses: []leaseholdv1.OutboxEventStatus{leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD}}
	for {
		answer, err := p.operators.ListOutboxEvents(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, answer.GetEvents()...)
		if req.PageToken = answer.GetNextPageToken(); req.PageToken == "" {
			return all
		}
	}
}
