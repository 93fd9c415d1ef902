package postgres_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/task"
)

// pages reads all pages of a query, and fails the test unless the events come in order.
func (r *relayRig) pages(q outbox.ListQuery) (events []outbox.EventView, pages int) {
	r.t.Helper()
	for {
		page, err := r.store.Outbox().ListEvents(r.t.Context(), q)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(page.Events) > q.Limit {
			r.t.Fatalf("%d events in a page of %d", len(page.Events), q.Limit)
		}
		pages++
		for i := range page.Events {
			if n := len(events); n > 0 && !before(&events[n-1], &page.Events[i]) {
				r.t.Fatalf("%v after %v", page.Events[i], events[n-1])
			}
			events = append(events, page.Events[i])
		}
		if page.Next == nil {
			return events, pages
		}
		q.After = *page.Next
	}
}

func before(a, b *outbox.EventView) bool {
	c := bytes.Compare(a.AggregateID[:], b.AggregateID[:])
	return c < 0 || c == 0 && a.Sequence < b.Sequence
}

// mixed makes events of every status, more behind some heads than one look takes.
func (r *relayRig) mixed() (long uuid.UUID) {
	r.t.Helper()
	dead, failed := r.add(130, 3), r.add(40, 3)
	r.kill(dead...)
	r.exec(`UPDATE outbox_events SET status = 'FAILED' WHERE sequence = 1 AND aggregate_id = ANY($1)`, failed)
	settled := r.add(60, 4)
	r.exec(`UPDATE outbox_events SET status = CASE WHEN sequence = 2 THEN 'SKIPPED' ELSE 'PUBLISHED' END, published_at = now() WHERE aggregate_id = ANY($1)`, settled)
	r.exec(`DELETE FROM outbox_heads WHERE aggregate_id = ANY($1)`, settled)
	half := r.add(20, 6)
	r.exec(`UPDATE outbox_events SET status = 'PUBLISHED', published_at = now() WHERE sequence <= 3 AND aggregate_id = ANY($1)`, half)
	r.exec(`UPDATE outbox_events SET status = 'PUBLISHING' WHERE sequence = 4 AND aggregate_id = ANY($1)`, half)
	r.exec(`UPDATE outbox_heads SET next_sequence = 4 WHERE aggregate_id = ANY($1)`, half)
	long = r.add(1, 350)[0]
	r.exec(`UPDATE executions SET namespace = 'other' WHERE id = ANY($1)`, dead[:50])
	r.exec(`UPDATE outbox_events SET namespace = 'other' WHERE aggregate_id = ANY($1)`, dead[:50])
	return long
}

// Each filter gives just its events, in order, in pages of any size. Caught: a position that
// skips or repeats at the border of a look or a head.
func TestListEvents_EveryFilterInPages(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	long := r.mixed()
	statuses := []outbox.Status{outbox.Pending, outbox.Publishing, outbox.Published, outbox.Failed, outbox.Dead, outbox.Skipped}
	filters := map[string]outbox.ListQuery{
		"none": {Namespace: "default"}, "other": {Namespace: "other"}, "nobody's": {Namespace: "nobody"},
		"unsettled":    {Namespace: "default", Statuses: []outbox.Status{outbox.Pending, outbox.Publishing, outbox.Failed, outbox.Dead}},
		"leading":      {Namespace: "default", Statuses: []outbox.Status{outbox.Failed, outbox.Dead}},
		"one":          {Namespace: "default", AggregateID: long},
		"one, PENDING": {Namespace: "default", AggregateID: long, Statuses: []outbox.Status{outbox.Pending}},
		"one, DEAD":    {Namespace: "default", AggregateID: long, Statuses: []outbox.Status{outbox.Dead}},
		"mixture":      {Namespace: "default", Statuses: []outbox.Status{outbox.Published, outbox.Pending}},
		"before":       {Namespace: "default", CreatedBefore: time.Now().Add(-time.Hour)},
	}
	for _, s := range statuses {
		filters[string(s)] = outbox.ListQuery{Namespace: "default", Statuses: []outbox.Status{s}}
	}
	for name, q := range filters {
		where := fmt.Sprintf("outbox_events WHERE namespace = '%s'", q.Namespace)
		if len(q.Statuses) > 0 {
			where += fmt.Sprintf(" AND status IN ('%s'", q.Statuses[0])
			for _, s := range q.Statuses[1:] {
				where += fmt.Sprintf(", '%s'", s)
			}
			where += ")"
		}
		if q.AggregateID != uuid.Nil {
			where += fmt.Sprintf(" AND aggregate_id = '%s'", q.AggregateID)
		}
		if !q.CreatedBefore.IsZero() {
			where += " AND created_at < now() - interval '1 hour'"
		}
		for _, limit := range []int{7, 100, 1000} {
			q.Limit = limit
			if got, _ := r.pages(q); len(got) != r.count(where) {
				t.Errorf("%s, %d a page: %d events, want %d", name, limit, len(got), r.count(where))
			}
		}
	}
}

// What is unsettled is found without a look at what is settled, however much that is, and a
// page of the rest looks at so many events and no more. Caught: a list that reads on until its
// page is full.
func TestListEvents_LooksAtLittle(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	settled := r.add(1, 1)
	r.exec(`INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, status, available_at, created_at, published_at)
		SELECT gen_random_uuid(), 'default', $1, 'leasehold.step.v1.succeeded', n, '{}', 'PUBLISHED', now(), now(), now() FROM generate_series(2, 90000) n`, settled[0])
	r.exec(`UPDATE outbox_events SET status = 'PUBLISHED' WHERE aggregate_id = $1 AND sequence = 1`, settled[0])
	r.exec(`DELETE FROM outbox_heads`)
	dead := r.add(30, 2)
	r.kill(dead...)
	plans := &explainer{t: t}
	store, err := postgres.Open(t.Context(), postgres.Config{URL: r.pool.Config().ConnString(), Events: task.AllEventTypes()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	if err := store.Trace(t.Context(), plans, map[string]string{"plan_cache_mode": "force_generic_plan"}); err != nil {
		t.Fatal(err)
	}
	list := func(q outbox.ListQuery) (page outbox.EventPage, buffers int) {
		q.Namespace, q.Limit = "default", 50
		for _, p := range plans.during(func() { page, err = store.Outbox().ListEvents(t.Context(), q) }) {
			p.check(t, fmt.Sprint(q.Statuses), false)
			buffers += p.buffers()
		}
		if err != nil {
			t.Fatal(err)
		}
		return page, buffers
	}
	for _, statuses := range [][]outbox.Status{{outbox.Dead}, {outbox.Failed, outbox.Dead}, {outbox.Pending, outbox.Dead}} {
		page, buffers := list(outbox.ListQuery{Statuses: statuses})
		if len(page.Events) < 30 || buffers > 1000 {
			t.Errorf("%v: %d events, %d buffers", statuses, len(page.Events), buffers)
		}
	}
	page, buffers := list(outbox.ListQuery{Statuses: []outbox.Status{outbox.Skipped}}) // there is none
	if len(page.Events) != 0 || page.Next == nil || buffers > 20_000 {
		t.Errorf("SKIPPED: %d events, %d buffers, next %v", len(page.Events), buffers, page.Next)
	}
	if found, pages := r.pages(outbox.ListQuery{Namespace: "default", Statuses: []outbox.Status{outbox.Skipped}, Limit: 50}); len(found) != 0 || pages > 4 {
		t.Errorf("%d events in %d pages", len(found), pages)
	}
}
