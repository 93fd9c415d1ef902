package postgres

import (
	"fmt"
	"testing"

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
