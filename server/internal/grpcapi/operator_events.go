package grpcapi

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Events finds events that other systems hear of, and changes what becomes of them.
type Events interface {
	// List reads at most q.Limit events; the page may be short while there are more.
	List(ctx context.Context, q outbox.ListQuery) (outbox.EventPage, error)
	// Change does an action on every selected event, and tells how many that were.
	Change(ctx context.Context, action outbox.Action, s outbox.Selection, reason string) (outbox.Total, error)
}

// ListOutboxEvents reads a page of events.
func (s *operatorService) ListOutboxEvents(ctx context.Context, r *leaseholdv1.ListOutboxEventsRequest) (*leaseholdv1.ListOutboxEventsResponse, error) {
	q, err := decodeListEvents(r)
	if err != nil {
		return nil, err
	}
	page, err := s.events.List(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := &leaseholdv1.ListOutboxEventsResponse{}
	room := newRoom(s.maxMessage)
	for i := range page.Events {
		e := encodeEvent(&page.Events[i])
		if !room.take(e) {
			last := &page.Events[i-1]
			page.Next = &outbox.Position{AggregateID: last.AggregateID, Sequence: last.Sequence}
			break
		}
		answer.Events = append(answer.Events, e)
	}
	if page.Next != nil {
		answer.NextPageToken = eventsBinding(q).placeToken(page.Next.AggregateID, page.Next.Sequence)
	}
	return answer, nil
}

// RedriveOutboxEvents makes DEAD events PENDING again.
func (s *operatorService) RedriveOutboxEvents(ctx context.Context, r *leaseholdv1.RedriveOutboxEventsRequest) (*leaseholdv1.RedriveOutboxEventsResponse, error) {
	total, err := s.events.Change(ctx, outbox.Redrive, decodeSelection(r), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.RedriveOutboxEventsResponse{Count: int32(total.Events), More: total.More}, nil
}

// SkipOutboxEvents makes events SKIPPED that wait or are DEAD.
func (s *operatorService) SkipOutboxEvents(ctx context.Context, r *leaseholdv1.SkipOutboxEventsRequest) (*leaseholdv1.SkipOutboxEventsResponse, error) {
	total, err := s.events.Change(ctx, outbox.Skip, decodeSelection(r), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.SkipOutboxEventsResponse{Count: int32(total.Events), More: total.More}, nil
}

func decodeListEvents(r *leaseholdv1.ListOutboxEventsRequest) (outbox.ListQuery, error) {
	q := outbox.ListQuery{
		Namespace: namespace(r.GetNamespace()), AggregateID: id(r.GetAggregateId()), CreatedBefore: instantUp(r.GetCreatedBefore()),
		Limit: pageSize(r.GetPageSize()), Payload: r.GetIncludePayload(),
	}
	for _, s := range r.GetStatuses() {
		q.Statuses = append(q.Statuses, decodeEventStatus(s))
	}
	var err error
	q.After.AggregateID, q.After.Sequence, err = eventsBinding(q).place(r.GetPageToken())
	return q, err
}

func eventsBinding(q outbox.ListQuery) binding {
	statuses := make([]string, len(q.Statuses))
	for i, s := range q.Statuses {
		statuses[i] = string(s)
	}
	return bind("ListOutboxEvents").text(q.Namespace, q.AggregateID.String(), q.CreatedBefore.Format(time.RFC3339Nano)).set(statuses)
}

// selection is what requests have that change events.
type selection interface {
	GetEventIds() []string
	GetNamespace() string
	GetStatus() leaseholdv1.OutboxEventStatus
	GetCreatedBefore() *timestamppb.Timestamp
}

// decodeSelection names events, or selects them; which of both was validated.
func decodeSelection(r selection) outbox.Selection {
	if ids := r.GetEventIds(); len(ids) > 0 {
		s := outbox.Selection{IDs: make([]uuid.UUID, len(ids))}
		for i := range ids {
			s.IDs[i] = id(ids[i])
		}
		return s
	}
	return outbox.Selection{
		Namespace: namespace(r.GetNamespace()), Statuses: []outbox.Status{decodeEventStatus(r.GetStatus())},
		CreatedBefore: instantUp(r.GetCreatedBefore()),
	}
}

func encodeEvent(v *outbox.EventView) *leaseholdv1.OutboxEvent {
	e := &leaseholdv1.OutboxEvent{
		Id: v.ID.String(), Namespace: v.Namespace, AggregateId: v.AggregateID.String(), Type: v.Type, Sequence: v.Sequence,
		Status: encodeEventStatus(v.Status), Attempts: int32(v.Attempts), LastError: v.LastError,
		CreateTime: instant(&v.CreatedAt), AvailableTime: instant(&v.AvailableAt), PublishTime: instant(v.PublishedAt),
	}
	if v.Status == outbox.Pending || v.Status == outbox.Failed {
		e.AvailableRemaining = span(v.Available)
	}
	if v.Data != nil {
		e.Payload = encodePayload(&task.Payload{JSON: true, Body: v.Data})
	}
	return e
}

const eventStatusPrefix = "OUTBOX_EVENT_STATUS_"

func decodeEventStatus(s leaseholdv1.OutboxEventStatus) outbox.Status {
	return outbox.Status(strings.TrimPrefix(s.String(), eventStatusPrefix))
}

func encodeEventStatus(s outbox.Status) leaseholdv1.OutboxEventStatus {
	return leaseholdv1.OutboxEventStatus(leaseholdv1.OutboxEventStatus_value[eventStatusPrefix+string(s)])
}
