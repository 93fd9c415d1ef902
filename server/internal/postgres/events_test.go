package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// operator is what operators can do with the rig's events.
func (r *relayRig) operator() *outbox.Operator { return outbox.NewOperator(r.store.Outbox(), nil) }

// change does an action and fails the test unless it changed as many events.
func (r *relayRig) change(action outbox.Action, s outbox.Selection, want int) {
	r.t.Helper()
	total, err := r.operator().Change(r.t.Context(), action, s, "because")
	if err != nil || total.Events != want || total.More {
		r.t.Fatalf("%s: %+v, %v, want %d events", action, total, err, want)
	}
}

// all selects by status, in the rig's namespace.
func all(statuses ...outbox.Status) outbox.Selection {
	return outbox.Selection{Namespace: "default", Statuses: statuses}
}

// kill makes the first events of aggregates DEAD, as a relay does.
func (r *relayRig) kill(aggregates ...uuid.UUID) {
	r.t.Helper()
	r.exec(`UPDATE outbox_events SET status = 'DEAD', attempts = 50, last_error = 'no' WHERE sequence = 1 AND aggregate_id = ANY($1)`, aggregates)
	r.exec(`UPDATE outbox_heads SET available_at = 'infinity' WHERE aggregate_id = ANY($1)`, aggregates)
}

// event is the id of one of an aggregate's events.
func (r *relayRig) event(aggregate uuid.UUID, sequence int) uuid.UUID {
	r.t.Helper()
	var id uuid.UUID
	if err := r.pool.QueryRow(r.t.Context(), `SELECT id FROM outbox_events WHERE aggregate_id = $1 AND sequence = $2`, aggregate, sequence).Scan(&id); err != nil {
		r.t.Fatal(err)
	}
	return id
}

// entries tells how many executions have just one entry of an action, with its reason.
func (r *relayRig) entries(action outbox.Action) int {
	r.t.Helper()
	return r.count(fmt.Sprintf(`(SELECT execution_id FROM timeline_entries WHERE stage = 'CONTROL' AND milestone LIKE 'r1/outbox/%s/%%'
		AND details ->> 'reason' = 'because' GROUP BY execution_id HAVING count(*) = 1) x`, action))
}

// Dead events are tried anew, from the first one on, in order; a repeat finds nothing. Caught: a
// redrive that leaves its head infinitely far, that keeps the tries, or that changes others.
func TestRedrive_TriesDeadEventsAnew(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	dead, others := r.add(450, 2), r.add(3, 1) // more than one batch
	r.kill(dead...)
	r.change(outbox.Redrive, all(outbox.Dead), len(dead))
	if n := r.count("outbox_events WHERE sequence = 1 AND status = 'PENDING' AND attempts = 0 AND last_error = 'no'"); n != len(dead) {
		t.Errorf("%d of %d are PENDING without tries, their last error kept", n, len(dead))
	}
	if n := r.count("outbox_heads WHERE available_at <= now()"); n != len(dead)+len(others) {
		t.Errorf("%d heads are due", n)
	}
	if n := r.entries(outbox.Redrive); n != len(dead) {
		t.Errorf("%d executions tell of it in one entry, want %d", n, len(dead))
	}
	if n := r.count("executions WHERE revision = 2"); n != len(dead) {
		t.Errorf("%d executions have a new revision, want %d", n, len(dead))
	}
	r.change(outbox.Redrive, all(outbox.Dead), 0)
	s := &sink{}
	r.relay(s, outbox.Config{})
	r.await("all are published", func() bool { return r.count("outbox_events WHERE status = 'PUBLISHED'") == 2*len(dead)+len(others) })
	checkOrder(t, s.received())
}

// A skipped event lets the next one go, wherever it stood. Caught: a head that stays.
func TestSkip_LetsTheNextGo(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	dead, failed, waiting := r.add(1, 3)[0], r.add(1, 3)[0], r.add(1, 3)[0]
	r.kill(dead)
	r.exec(`UPDATE outbox_events SET status = 'FAILED', available_at = now() + interval '1 hour' WHERE aggregate_id = $1 AND sequence = 1`, failed)
	r.exec(`UPDATE outbox_heads SET available_at = now() + interval '1 hour' WHERE aggregate_id = $1`, failed)
	r.change(outbox.Skip, outbox.Selection{IDs: []uuid.UUID{r.event(dead, 1), r.event(failed, 1), r.event(waiting, 2), r.event(waiting, 2)}}, 3)
	if n := r.entries(outbox.Skip); n != 3 {
		t.Errorf("%d executions tell of it, want 3", n)
	}
	s := &sink{}
	r.relay(s, outbox.Config{})
	r.await("the others are published", func() bool { return r.count("outbox_events WHERE status = 'PUBLISHED'") == 6 })
	if n := r.count("outbox_heads"); n != 0 {
		t.Errorf("%d heads are left", n)
	}
	// What is settled stays so.
	r.change(outbox.Skip, outbox.Selection{IDs: []uuid.UUID{r.event(waiting, 1), r.event(waiting, 2)}}, 0)
	r.change(outbox.Redrive, outbox.Selection{IDs: []uuid.UUID{r.event(waiting, 1), r.event(waiting, 2)}}, 0)
	if n := r.count("outbox_events WHERE status = 'SKIPPED'"); n != 3 {
		t.Errorf("%d are skipped, want 3", n)
	}
}

// Skipping the last unsettled event settles its execution. Caught: a head that leads nowhere.
func TestSkip_EverythingLeavesNoHead(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	r.kill(r.add(5, 4)...)
	r.change(outbox.Skip, all(outbox.Pending, outbox.Failed, outbox.Dead), 20)
	if n := r.count("outbox_heads"); n != 0 {
		t.Errorf("%d heads are left", n)
	}
}

// What a relay is publishing is its own until its claim is over; a change behind it does not
// take the claim away. Caught: a skip of PUBLISHING events; heads that are moved under a claim.
func TestSkip_LeavesAloneWhatIsBeingPublished(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	id := r.add(1, 60)[0] // a claim takes 50
	source := r.store.Outbox()
	runs, err := source.Claim(t.Context(), outbox.Claim{ID: uuid.New(), Heads: 1, Events: 50, Expires: time.Minute})
	if err != nil || len(runs) != 1 || len(runs[0].Events) != 50 {
		t.Fatalf("claim: %v, %+v", err, runs)
	}
	r.change(outbox.Skip, outbox.Selection{IDs: []uuid.UUID{r.event(id, 1), r.event(id, 55)}}, 1)
	if lost, err := source.Settle(t.Context(), []outbox.RunResult{{Run: runs[0], Published: 50}}); err != nil || lost != 0 {
		t.Fatalf("the relay's claim: %v, %d lost", err, lost)
	}
	r.change(outbox.Skip, all(outbox.Pending), 9)
	if n := r.count("outbox_heads"); n != 0 {
		t.Errorf("%d heads are left", n)
	}
}

// What a dead relay has claimed can be skipped once the claim is over, and comes to nothing for
// that relay. Caught: events that stay PUBLISHING for ever where no sink is any more.
func TestSkip_TakesWhatALostClaimLeft(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	r.add(2, 2)
	runs, err := r.store.Outbox().Claim(t.Context(), outbox.Claim{ID: uuid.New(), Heads: 2, Events: 50, Expires: time.Minute})
	if err != nil || len(runs) != 2 {
		t.Fatalf("claim: %v, %+v", err, runs)
	}
	r.change(outbox.Skip, all(outbox.Pending), 0)
	r.exec("UPDATE outbox_heads SET claim_expires_at = now() - interval '1 s'")
	r.exec("UPDATE outbox_events SET claim_expires_at = now() - interval '1 s'")
	r.change(outbox.Skip, all(outbox.Pending), 4)
	lost, err := r.store.Outbox().Settle(t.Context(), []outbox.RunResult{{Run: runs[0], Published: 2}, {Run: runs[1], Published: 1}})
	if err != nil || lost != 2 || r.count("outbox_events WHERE status = 'SKIPPED'") != 4 {
		t.Errorf("a late settlement: %v, %d lost", err, lost)
	}
}

// By filter: only that namespace, only that status, only what is old enough. A count changes
// nothing.
func TestChange_ByFilter(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	here, elsewhere, young := r.add(3, 2), r.add(3, 2), r.add(3, 2)
	r.kill(slices.Concat(here, elsewhere, young)...)
	r.exec(`UPDATE executions SET namespace = 'other' WHERE id = ANY($1)`, elsewhere)
	r.exec(`UPDATE outbox_events SET namespace = 'other' WHERE aggregate_id = ANY($1)`, elsewhere)
	cut := time.Now().Add(-time.Minute) // far from the events on both sides
	r.exec(`UPDATE outbox_events SET created_at = created_at - interval '1 hour' WHERE NOT aggregate_id = ANY($1)`, young)
	s := all(outbox.Dead)
	s.CreatedBefore = cut
	total, err := r.operator().Count(t.Context(), outbox.Redrive, s)
	if err != nil || total.Events != 3 || total.Executions != 3 {
		t.Errorf("count: %+v, %v", total, err)
	}
	if n := r.count("outbox_events WHERE status = 'DEAD'"); n != 9 {
		t.Errorf("a count left %d DEAD of 9", n)
	}
	r.change(outbox.Redrive, s, 3)
	if n := r.count("outbox_events WHERE status = 'DEAD' AND namespace = 'default'"); n != 3 {
		t.Errorf("%d DEAD ones are left here, want the 3 young ones", n)
	}
	everywhere := outbox.Selection{Statuses: []outbox.Status{outbox.Dead}}
	r.change(outbox.Skip, everywhere, 6)
	r.change(outbox.Skip, all(outbox.Pending), 9) // the redriven ones, and those behind
}

// One unknown id, and nothing is changed.
func TestChange_UnknownEvent(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	id := r.add(1, 1)[0]
	unknown := uuid.New()
	_, err := r.operator().Change(t.Context(), outbox.Skip, outbox.Selection{IDs: []uuid.UUID{r.event(id, 1), unknown}}, "")
	var missing *scheduler.NotFoundError
	if !errors.As(err, &missing) || missing.Kind != scheduler.KindEvent || missing.ID != unknown.String() {
		t.Errorf("got %v", err)
	}
	if n := r.count("outbox_events WHERE status = 'PENDING'"); n != 1 {
		t.Error("the other event was changed")
	}
}

// Rule 10. A change whose commit is unknown is found by its entries, and counted once. Caught: a
// call that answers 0, for the events are not DEAD any more.
func TestRepeats_LostCommitOfAChangeOfEvents(t *testing.T) {
	cuts(t, func(t *testing.T, s *cutStand, c cutting) {
		s.exec("UPDATE outbox_events SET status = 'DEAD' WHERE sequence = 1")
		s.exec("UPDATE outbox_heads SET available_at = 'infinity'")
		want := query[int](s.stand, "SELECT count(*) FROM outbox_heads")
		s.cutOnce(c, nil, func() error {
			total, err := outbox.NewOperator(s.store.Outbox(), nil).Change(t.Context(), outbox.Redrive, all(outbox.Dead), "")
			if total.Events != want || total.Executions != want {
				err = errors.Join(err, fmt.Errorf("%+v, want %d", total, want))
			}
			return err
		})
		if n := query[int](s.stand, "SELECT count(*) FROM timeline_entries WHERE stage = 'CONTROL'"); n != want {
			t.Errorf("%d entries, want %d", n, want)
		}
	})
}
