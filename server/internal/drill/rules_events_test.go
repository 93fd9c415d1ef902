package drill

import (
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	eventPending = leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING
	eventDead    = leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD
	eventSkipped = leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_SKIPPED
)

// events lists all events of a filter, page by page through all replicas.
func (w *world) events(r *leaseholdv1.ListOutboxEventsRequest) []*leaseholdv1.OutboxEvent {
	w.t.Helper()
	var list []*leaseholdv1.OutboxEvent
	for page := 0; ; page++ {
		answer, err := w.Client(page).Operators.ListOutboxEvents(w.ctx, r)
		if err != nil {
			w.t.Fatalf("list events: %v", err)
		}
		list = append(list, answer.GetEvents()...)
		if r.PageToken = answer.GetNextPageToken(); r.PageToken == "" {
			return list
		}
	}
}

// TestOperator_EventsThroughAnyReplica: an operator finds the events that a sink refused, has
// them tried anew or skips them, and the executions tell of it, those that have ended too.
func TestOperator_EventsThroughAnyReplica(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	ids := w.enqueueMany(5, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	h := w.worker(0, 5)
	h.succeedAll(h.take(5, long))
	for _, id := range ids[:3] { // as a relay leaves it
		w.rows(`UPDATE outbox_events SET status = 'DEAD', attempts = 7, last_error = 'no' WHERE aggregate_id = $1 AND sequence = 1 RETURNING ''`, id)
		w.rows(`UPDATE outbox_heads SET available_at = 'infinity' WHERE aggregate_id = $1 RETURNING ''`, id)
	}
	dead := w.events(&leaseholdv1.ListOutboxEventsRequest{Statuses: []leaseholdv1.OutboxEventStatus{eventDead}, PageSize: 2, IncludePayload: true})
	want(t, "dead events", len(dead), 3)
	for _, e := range dead {
		want(t, "type", e.GetType(), "leasehold.execution.v1.enqueued")
		want(t, "attempts", e.GetAttempts(), 7)
		want(t, "last error", e.GetLastError(), "no")
		if e.GetPayload().GetJson() == "" {
			t.Error("no payload")
		}
	}
	redriven, err := w.Client(1).Operators.RedriveOutboxEvents(w.ctx, &leaseholdv1.RedriveOutboxEventsRequest{
		EventIds: []string{dead[0].GetId(), dead[1].GetId()}, Reason: "the sink is well",
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "redriven", redriven.GetCount(), 2)
	skipped, err := w.Client(0).Operators.SkipOutboxEvents(w.ctx, &leaseholdv1.SkipOutboxEventsRequest{Status: eventDead, Reason: "nobody needs it"})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "skipped", skipped.GetCount(), 1)
	entries := w.timeline(dead[2].GetAggregateId())
	last := entries[len(entries)-1]
	want(t, "title", last.GetTitle(), "Outbox events skipped")
	want(t, "stage", last.GetStage(), leaseholdv1.TimelineStage_TIMELINE_STAGE_CONTROL)
	want(t, "reason", last.GetDetails()["reason"], "nobody needs it")
	want(t, "revision", w.get(dead[2].GetAggregateId()).GetRevision(), last.GetSequence())
	one := w.events(&leaseholdv1.ListOutboxEventsRequest{AggregateId: dead[2].GetAggregateId(), PageSize: 4})
	want(t, "status", one[0].GetStatus(), eventSkipped)
	want(t, "the next one", one[1].GetStatus(), eventPending)
	if one[1].GetAvailableRemaining() == nil || one[1].GetAvailableRemaining().AsDuration() != 0 {
		t.Errorf("the next one is due in %v", one[1].GetAvailableRemaining())
	}
	for i, e := range one {
		want(t, "sequence", e.GetSequence(), int64(i+1))
	}
	_, err = w.Client(1).Operators.SkipOutboxEvents(w.ctx, &leaseholdv1.SkipOutboxEventsRequest{EventIds: []string{dead[0].GetId(), uuid.NewString()}})
	refused(t, err, codes.NotFound, "EVENT_NOT_FOUND")
	want(t, "the event beside the unknown one", w.events(&leaseholdv1.ListOutboxEventsRequest{AggregateId: dead[0].GetAggregateId()})[0].GetStatus(), eventPending)
}
