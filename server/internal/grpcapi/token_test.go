package grpcapi

import (
	"context"
	"encoding/base64"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func TestToken_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := bind(rapid.String().Draw(t, "method")).text(rapid.SliceOf(rapid.String()).Draw(t, "filter")...)
		n := rapid.Int64().Draw(t, "number")
		if got, err := b.number(b.numberToken(n), 0); err != nil || got != n {
			t.Fatalf("got %d, %v, want %d", got, err, n)
		}
		at := time.UnixMicro(rapid.Int64Range(-62_135_596_800_000_000, 253_402_300_799_999_999).Draw(t, "at")).UTC()
		id := uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		gotAt, gotID, err := b.key(b.keyToken(at, id))
		if err != nil || !gotAt.Equal(at) || gotID != id {
			t.Fatalf("got %v %v %v, want %v %v", gotAt, gotID, err, at, id)
		}
	})
}

func TestToken_RefusesDamage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := bind("method").text("filter")
		good := b.numberToken(rapid.Int64().Draw(t, "number"))
		raw, _ := base64.RawURLEncoding.DecodeString(good)
		raw[rapid.IntRange(0, len(raw)-1).Draw(t, "byte")] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		for _, bad := range []string{
			base64.RawURLEncoding.EncodeToString(raw),
			good[:rapid.IntRange(1, len(good)-1).Draw(t, "cut")],
			good + "A", rapid.StringN(1, 64, -1).Draw(t, "other"),
		} {
			if _, err := b.number(bad, 0); err == nil && bad != good {
				t.Fatalf("%q was taken for a token", bad)
			}
		}
		if _, _, err := b.key(good); err == nil {
			t.Fatal("a number's token was taken for a key's")
		}
	})
}

// TestToken_RefusesForgedPositions: a digest is no secret, so a position may be anything that a
// caller likes. What the database cannot take is no position. Caught: no look at the name (INTERNAL),
// the ordinal (wraps round to another page) or the year.
func TestToken_RefusesForgedPositions(t *testing.T) {
	t.Parallel()
	b := bind("method").text("filter")
	for _, name := range []string{"a\x00", "\xff", "\xed\xa0\x80"} {
		if got, err := b.name(b.nameToken(name)); err == nil {
			t.Errorf("name %q is taken: %q", name, got)
		}
	}
	for _, n := range []int64{-2, math.MinInt64, math.MaxInt32 + 1, math.MaxUint32, math.MaxInt64} {
		if got, err := b.ordinal(b.numberToken(n)); err == nil {
			t.Errorf("ordinal %d is taken: %d", n, got)
		}
	}
	for _, micros := range []int64{math.MinInt64, math.MaxInt64, -62_135_596_800_000_001, 253_402_300_800_000_000} {
		if got, _, err := b.key(b.keyToken(time.UnixMicro(micros), uuid.Nil)); err == nil {
			t.Errorf("instant %d is taken: %v", micros, got)
		}
	}
	for _, n := range []int64{-1, 0, math.MaxInt32} {
		if got, err := b.ordinal(b.numberToken(n)); err != nil || int64(got) != n {
			t.Errorf("ordinal %d: %d, %v", n, got, err)
		}
	}
}

// TestToken_HasOneForm: the spare bits of base64's last character are part of it.
func TestToken_HasOneForm(t *testing.T) {
	t.Parallel()
	b := bind("method")
	good := b.keyToken(time.UnixMicro(1), uuid.MustParse(someID))
	accepted := 0
	for c := range 256 {
		if _, _, err := b.key(good[:len(good)-1] + string([]byte{byte(c)})); err == nil {
			accepted++
		}
	}
	if accepted != 1 {
		t.Errorf("%d tokens are taken for one", accepted)
	}
}

func TestToken_BelongsToItsFilter(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{
		list: func(_ context.Context, q scheduler.ListQuery) (scheduler.ExecutionPage, error) {
			return scheduler.ExecutionPage{Executions: make([]scheduler.ExecutionView, q.Limit), Next: &scheduler.ListPosition{CreatedAt: time.Unix(1, 0)}}, nil
		},
		timeline: func(_ context.Context, _ uuid.UUID, _ int64, limit int) ([]scheduler.EntryView, error) {
			return make([]scheduler.EntryView, limit), nil
		},
	}, Config{})
	base := func() *leaseholdv1.ListExecutionsRequest {
		return &leaseholdv1.ListExecutionsRequest{
			PageSize: 2, States: []leaseholdv1.ExecutionState{1, 2}, LabelSelector: map[string]string{"a": "b", "c": "d"},
			CreatedAfter: timestamppb.New(time.Unix(100, 0)),
		}
	}
	first, err := r.executions.ListExecutions(t.Context(), base())
	if err != nil || first.GetNextPageToken() == "" {
		t.Fatal(first, err)
	}
	same := base()
	same.PageToken, same.PageSize, same.Namespace = first.GetNextPageToken(), 3, "default"
	slices.Reverse(same.States)
	if _, err := r.executions.ListExecutions(t.Context(), same); err != nil {
		t.Errorf("the same filter in another form: %v", err)
	}
	for name, change := range map[string]func(*leaseholdv1.ListExecutionsRequest){
		"namespace": func(r *leaseholdv1.ListExecutionsRequest) { r.Namespace = "other" },
		"states":    func(r *leaseholdv1.ListExecutionsRequest) { r.States = r.States[:1] },
		"name":      func(r *leaseholdv1.ListExecutionsRequest) { r.Name = "n" },
		"labels":    func(r *leaseholdv1.ListExecutionsRequest) { r.LabelSelector = map[string]string{"a": "b"} },
		"after":     func(r *leaseholdv1.ListExecutionsRequest) { r.CreatedAfter = timestamppb.New(time.Unix(101, 0)) },
		"before":    func(r *leaseholdv1.ListExecutionsRequest) { r.CreatedBefore = timestamppb.New(time.Unix(200, 0)) },
		"damage":    func(r *leaseholdv1.ListExecutionsRequest) { r.PageToken += "x" },
	} {
		request := base()
		request.PageToken = first.GetNextPageToken()
		change(request)
		_, err := r.executions.ListExecutions(t.Context(), request)
		checkBadToken(t, name, err)
	}
	entries, err := r.executions.ListTimeline(t.Context(), &leaseholdv1.ListTimelineRequest{ExecutionId: someID, PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.executions.ListTimeline(t.Context(), &leaseholdv1.ListTimelineRequest{ExecutionId: otherID, PageToken: entries.GetNextPageToken()})
	checkBadToken(t, "another execution's", err)
	_, err = r.executions.GetExecution(t.Context(), &leaseholdv1.GetExecutionRequest{ExecutionId: someID, PageToken: entries.GetNextPageToken()})
	checkBadToken(t, "another method's", err)
	_, err = r.workers.GetStepInputs(t.Context(), &leaseholdv1.GetStepInputsRequest{AttemptId: someID, LeaseVersion: 1, PageToken: entries.GetNextPageToken()})
	checkBadToken(t, "another service's", err)
}

func checkBadToken(t *testing.T, name string, err error) {
	t.Helper()
	got := refusalOf(t, err)
	if got.code != codes.InvalidArgument || got.fields["page_token"] != string(task.ReasonInvalidField) {
		t.Errorf("%s: got %v %v", name, got.code, got.fields)
	}
}
