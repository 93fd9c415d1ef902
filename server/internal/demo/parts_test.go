package demo

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/api/consumer"
)

// TestDeliver_OnceByKey: workers with different leases of one coupon, at once and again.
// Breaks seen to fail: no fence; no look at the key.
func TestDeliver_OnceByKey(t *testing.T) {
	t.Parallel()
	box := mailbox{newDatabase(t, mailboxSchema)}
	coupon := Coupon{Campaign: "spring", Customer: "ada"}
	const last = 40
	var wg sync.WaitGroup
	for _, version := range rand.Perm(last) {
		wg.Go(func() {
			if err := box.deliver(t.Context(), coupon, int64(version+1)); err != nil && !errors.Is(err, consumer.ErrStaleToken) {
				t.Errorf("deliver: %v", err)
			}
		})
	}
	wg.Wait()
	if err := box.deliver(t.Context(), coupon, last); err != nil {
		t.Errorf("the newest again: %v", err)
	}
	if err := box.deliver(t.Context(), coupon, last-1); !errors.Is(err, consumer.ErrStaleToken) {
		t.Errorf("a stale one: %v, want ErrStaleToken", err)
	}
	sent, err := numbers(t.Context(), box.db, `SELECT key, count(*) FROM messages GROUP BY key`)
	if err != nil || len(sent) != 1 || sent[coupon.Key()] != 1 {
		t.Errorf("messages: %v, %v, want one", sent, err)
	}
	repeats, err := numbers(t.Context(), box.db, `SELECT key, count(*) FROM repeats GROUP BY key`)
	if err != nil || repeats[coupon.Key()] == 0 {
		t.Errorf("repeats: %v, %v, want some", repeats, err)
	}
	refused, err := numbers(t.Context(), box.db, `SELECT key, count(*) FROM refusals WHERE newest > lease_version GROUP BY key`)
	if err != nil || refused[coupon.Key()] == 0 {
		t.Errorf("refusals: %v, %v, want some", refused, err)
	}
}

// TestIssue_AnEventAgainIsIgnored. Break seen to fail: the fact without the inbox.
func TestIssue_AnEventAgainIsIgnored(t *testing.T) {
	t.Parallel()
	s := &shop{db: newDatabase(t, shopSchema)}
	coupon := Coupon{Campaign: "spring", Customer: "ada"}
	e := &consumer.Event{ID: uuid.New(), ExecutionID: uuid.New(), Sequence: 1}
	for _, want := range []consumer.Outcome{consumer.Handled, consumer.Repeat, consumer.Repeat} {
		if outcome, err := s.issue(t.Context(), e, coupon); err != nil || outcome != want {
			t.Errorf("issue: %v, %v, want %v", outcome, err, want)
		}
	}
	const facts = `SELECT campaign || '/' || customer, times FROM coupons`
	if issued, err := numbers(t.Context(), s.db, facts); err != nil || len(issued) != 1 || issued[coupon.Key()] != 1 {
		t.Errorf("facts: %v, %v, want one, issued once", issued, err)
	}
	// A second execution for the coupon would be seen in the verdict.
	other := &consumer.Event{ID: uuid.New(), ExecutionID: uuid.New(), Sequence: 1}
	if _, err := s.issue(t.Context(), other, coupon); err != nil {
		t.Fatal(err)
	}
	if issued, err := numbers(t.Context(), s.db, facts); err != nil || issued[coupon.Key()] != 2 {
		t.Errorf("facts: %v, %v, want one, issued twice", issued, err)
	}
}
