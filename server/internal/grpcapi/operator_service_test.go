package grpcapi

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

const statusDead = leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD

func TestEncode_EveryEventStatusHasItsName(t *testing.T) {
	t.Parallel()
	for _, s := range []outbox.Status{outbox.Pending, outbox.Publishing, outbox.Published, outbox.Failed, outbox.Dead, outbox.Skipped} {
		if got := encodeEventStatus(s); got == 0 || decodeEventStatus(got) != s {
			t.Errorf("%s became %v", s, got)
		}
	}
}

func TestEncodeEvent(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	view := &outbox.EventView{
		Event: outbox.Event{
			ID: uuid.MustParse(someID), Namespace: "n", AggregateID: uuid.MustParse(otherID), Type: "leasehold.step.v1.failed",
			Sequence: 7, Data: []byte(`{"a": 1}`), CreatedAt: now, Attempts: 2,
		},
		Status: outbox.Failed, LastError: "no", AvailableAt: now.Add(time.Minute), Available: time.Minute,
	}
	want := &leaseholdv1.OutboxEvent{
		Id: someID, Namespace: "n", AggregateId: otherID, Type: "leasehold.step.v1.failed", Sequence: 7, Attempts: 2, LastError: "no",
		Status: leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_FAILED, CreateTime: timestamppb.New(now),
		AvailableTime: timestamppb.New(now.Add(time.Minute)), AvailableRemaining: durationpb.New(time.Minute), Payload: jsonPayload(`{"a": 1}`),
	}
	if diff := cmp.Diff(want, encodeEvent(view), protocmp.Transform()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	view.Status, view.PublishedAt, view.Data = outbox.Published, &now, nil
	got := encodeEvent(view)
	if got.GetAvailableRemaining() != nil || !got.GetPublishTime().AsTime().Equal(now) || got.GetPayload() != nil {
		t.Errorf("got %v", got)
	}
}

// TestListOutboxEvents_PagesAreBoundToTheirFilter: the token leads on from where the answer
// ended, be it the store's bound or the message limit.
func TestListOutboxEvents_PagesAreBoundToTheirFilter(t *testing.T) {
	t.Parallel()
	aggregate := uuid.MustParse(someID)
	var asked []outbox.ListQuery
	app := &fakeApp{events: func(_ context.Context, q outbox.ListQuery) (outbox.EventPage, error) {
		asked = append(asked, q)
		page := outbox.EventPage{Next: &outbox.Position{AggregateID: aggregate, Sequence: math.MaxInt64}}
		for i := range 3 {
			e := outbox.EventView{Event: outbox.Event{AggregateID: aggregate, Sequence: int64(i + 1)}, LastError: strings.Repeat("x", 1500)}
			page.Events = append(page.Events, e)
		}
		return page, nil
	}}
	r := newRig(t, app, Config{MaxMessageBytes: 6000})
	request := func() *leaseholdv1.ListOutboxEventsRequest {
		return &leaseholdv1.ListOutboxEventsRequest{
			Namespace: "n", Statuses: []leaseholdv1.OutboxEventStatus{statusDead, leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_FAILED},
			CreatedBefore: timestamppb.New(time.Unix(100, 1)), PageSize: 3,
		}
	}
	first, err := r.operators.ListOutboxEvents(t.Context(), request())
	if err != nil || len(first.GetEvents()) != 3 || first.GetNextPageToken() == "" {
		t.Fatalf("%v, %v", first, err)
	}
	next := request()
	slices.Reverse(next.Statuses)
	next.PageToken = first.GetNextPageToken()
	if _, err := r.operators.ListOutboxEvents(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	want := outbox.ListQuery{
		Namespace: "n", Statuses: []outbox.Status{outbox.Failed, outbox.Dead}, CreatedBefore: time.Unix(100, 1000).UTC(), Limit: 3,
		After: outbox.Position{AggregateID: aggregate, Sequence: math.MaxInt64},
	}
	if diff := cmp.Diff(want, asked[1]); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for name, change := range map[string]func(*leaseholdv1.ListOutboxEventsRequest){
		"namespace": func(r *leaseholdv1.ListOutboxEventsRequest) { r.Namespace = "other" },
		"statuses":  func(r *leaseholdv1.ListOutboxEventsRequest) { r.Statuses = r.Statuses[:1] },
		"aggregate": func(r *leaseholdv1.ListOutboxEventsRequest) { r.AggregateId = otherID },
		"before":    func(r *leaseholdv1.ListOutboxEventsRequest) { r.CreatedBefore = nil },
		"damage":    func(r *leaseholdv1.ListOutboxEventsRequest) { r.PageToken += "x" },
	} {
		bad := request()
		bad.PageToken = first.GetNextPageToken()
		change(bad)
		_, err := r.operators.ListOutboxEvents(t.Context(), bad)
		checkBadToken(t, name, err)
	}
}

// TestListOutboxEvents_FitsIntoAMessage: what does not fit comes with the next page.
func TestListOutboxEvents_FitsIntoAMessage(t *testing.T) {
	t.Parallel()
	aggregate := uuid.MustParse(someID)
	app := &fakeApp{events: func(_ context.Context, q outbox.ListQuery) (outbox.EventPage, error) {
		page := outbox.EventPage{}
		for n := q.After.Sequence + 1; n <= 5; n++ {
			e := outbox.Event{AggregateID: aggregate, Sequence: n, Data: []byte(`"` + strings.Repeat("x", 2000) + `"`)}
			page.Events = append(page.Events, outbox.EventView{Event: e})
		}
		return page, nil
	}}
	r := newRig(t, app, Config{MaxMessageBytes: 6000})
	var got []int64
	request := &leaseholdv1.ListOutboxEventsRequest{IncludePayload: true}
	for pages := 1; ; pages++ {
		answer, err := r.operators.ListOutboxEvents(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range answer.GetEvents() {
			got = append(got, e.GetSequence())
		}
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			if pages != 3 {
				t.Errorf("%d pages, want 3", pages)
			}
			break
		}
	}
	if !slices.Equal(got, []int64{1, 2, 3, 4, 5}) {
		t.Errorf("got %v", got)
	}
}

// TestChangeOutboxEvents_ExactlyOneSelection: by ids or by status, never both or neither, and
// only the states that the action is possible in.
func TestChangeOutboxEvents_ExactlyOneSelection(t *testing.T) {
	t.Parallel()
	var got outbox.Selection
	var action outbox.Action
	app := &fakeApp{change: func(_ context.Context, a outbox.Action, s outbox.Selection, _ string) (outbox.Total, error) {
		action, got = a, s
		return outbox.Total{Events: 4, More: true}, nil
	}}
	r := newRig(t, app, Config{})
	skip := func(r2 *leaseholdv1.SkipOutboxEventsRequest) error {
		_, err := r.operators.SkipOutboxEvents(t.Context(), r2)
		return err
	}
	redrive := func(r2 *leaseholdv1.RedriveOutboxEventsRequest) error {
		_, err := r.operators.RedriveOutboxEvents(t.Context(), r2)
		return err
	}
	before := timestamppb.New(time.Unix(100, 0))
	many := make([]string, 1001)
	for i := range many {
		many[i] = someID
	}
	for name, tt := range map[string]struct {
		err   error
		field string
	}{
		"neither":            {skip(&leaseholdv1.SkipOutboxEventsRequest{Reason: "r"}), "event_ids"},
		"both":               {skip(&leaseholdv1.SkipOutboxEventsRequest{EventIds: []string{someID}, Status: statusDead}), "event_ids"},
		"ids and an instant": {skip(&leaseholdv1.SkipOutboxEventsRequest{EventIds: []string{someID}, CreatedBefore: before}), "created_before"},
		"no id":              {skip(&leaseholdv1.SkipOutboxEventsRequest{EventIds: []string{someID, "x"}}), "event_ids[1]"},
		"too many":           {skip(&leaseholdv1.SkipOutboxEventsRequest{EventIds: many}), "event_ids"},
		"skip published":     {skip(&leaseholdv1.SkipOutboxEventsRequest{Status: leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PUBLISHED}), "status"},
		"skip publishing":    {skip(&leaseholdv1.SkipOutboxEventsRequest{Status: leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PUBLISHING}), "status"},
		"redrive pending":    {redrive(&leaseholdv1.RedriveOutboxEventsRequest{Status: leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING}), "status"},
		"redrive nothing":    {redrive(&leaseholdv1.RedriveOutboxEventsRequest{}), "event_ids"},
		"long reason":        {redrive(&leaseholdv1.RedriveOutboxEventsRequest{Status: statusDead, Reason: strings.Repeat("x", 1025)}), "reason"},
	} {
		if refused := refusalOf(t, tt.err); refused.code != codes.InvalidArgument || refused.fields[tt.field] == "" {
			t.Errorf("%s: %v %v, want a violation of %s", name, refused.code, refused.fields, tt.field)
		}
	}
	answer, err := r.operators.SkipOutboxEvents(t.Context(), &leaseholdv1.SkipOutboxEventsRequest{Status: statusDead, CreatedBefore: before})
	want := outbox.Selection{Namespace: "default", Statuses: []outbox.Status{outbox.Dead}, CreatedBefore: before.AsTime()}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || action != outbox.Skip || answer.GetCount() != 4 || !answer.GetMore() {
		t.Errorf("%v, %v, %s: %s", answer, err, action, diff)
	}
	if err := redrive(&leaseholdv1.RedriveOutboxEventsRequest{EventIds: []string{someID, otherID}, Namespace: "ignored"}); err != nil {
		t.Fatal(err)
	}
	want = outbox.Selection{IDs: []uuid.UUID{uuid.MustParse(someID), uuid.MustParse(otherID)}}
	if diff := cmp.Diff(want, got); diff != "" || action != outbox.Redrive {
		t.Errorf("%s: %s", action, diff)
	}
}

func TestChangeOutboxEvents_UnknownEvent(t *testing.T) {
	t.Parallel()
	app := &fakeApp{change: func(context.Context, outbox.Action, outbox.Selection, string) (outbox.Total, error) {
		return outbox.Total{}, &scheduler.NotFoundError{Kind: scheduler.KindEvent, ID: someID}
	}}
	r := newRig(t, app, Config{})
	_, err := r.operators.RedriveOutboxEvents(t.Context(), &leaseholdv1.RedriveOutboxEventsRequest{EventIds: []string{someID}})
	got := refusalOf(t, err)
	if got.code != codes.NotFound || got.info.GetReason() != "EVENT_NOT_FOUND" || got.info.GetMetadata()["event_id"] != someID {
		t.Errorf("got %v %v", got.code, got.info)
	}
}
