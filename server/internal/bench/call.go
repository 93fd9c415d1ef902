package bench

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	askAgain  = 50 * time.Millisecond // after an answer that was not OK
	mostTold  = 10                    // errors of a site
	leaseTime = 30 * time.Second      // that leases last
)

// insist calls until it is answered OK, as a good client does: each call here is safe to repeat.
// It gives up when ctx ends, and on refusals that would stay the same. Every answer that is not
// OK is counted.
func (s *site) insist(ctx context.Context, call func(context.Context) error) error {
	for {
		err := call(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.failed(err)
		if !repeatable(err) || !pause(ctx, askAgain) {
			return err
		}
	}
}

// failed counts an answer that was not OK, and tells the first ones.
func (s *site) failed(err error) {
	if s.errors.Add(1) <= mostTold {
		s.tell("not answered OK: %v", err)
	}
}

// repeatable tells whether a later call may be answered otherwise.
func repeatable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted:
		return true
	default:
		return false
	}
}

// thousands writes a number with commas.
func thousands(n int64) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
