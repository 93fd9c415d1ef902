package postgres

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// A domain's refusal inside a batch is a bug of one item, not an absent database: as
// faultTransient it is tried 8 times, and then fails the whole flush instead of being halved.
func TestReview_DomainErrorIsNotAnAbsentDatabase(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("report attempt x: %w", &task.TransitionError{Entity: "step", From: "READY", Event: "report"})
	if got := classify(err); got == faultTransient {
		t.Errorf("classify(%v) = faultTransient", err)
	}
}

// A look in full that an outage ended after 15 s is no look that takes 15 s: the next one would come
// two and a half minutes later, or twelve while the group does not look empty. One that a timeout of
// the statement ended is.
func TestReview_OutageIsNoSlowLook(t *testing.T) {
	t.Parallel()
	group := scheduler.Group{Namespace: "default", Capability: "a"}
	for name, c := range map[string]struct {
		err  error
		full bool // five seconds later
	}{
		"an outage":   {fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		"a slow look": {&pgconn.PgError{Code: codeQueryCanceled}, false},
	} {
		known := &frontier{since: map[int16]time.Time{}}
		f := &frontiers{groups: map[scheduler.Group]*frontier{group: known}}
		v := f.begin([]scheduler.Group{group}, true)
		if !v.full[0] {
			t.Fatalf("%s: not looked at in full", name)
		}
		v.began = v.began.Add(-15 * time.Second)
		f.failed(v, c.err)
		if known.wantsFull(time.Now()) {
			t.Errorf("%s: looks in full are all that is tried", name)
		}
		if got := known.wantsFull(time.Now().Add(5 * time.Second)); got != c.full {
			t.Errorf("%s: looked at in full after five seconds: %v, want %v", name, got, c.full)
		}
	}
}
