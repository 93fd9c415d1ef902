package consumer

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// What errors.Is finds in the errors of this package.
var (
	// ErrMalformed: not an event of Leasehold. It will never be one: put the message aside.
	ErrMalformed = errors.New("leasehold: not an event of Leasehold")
	// ErrGap: an earlier event of the execution is missing. The error is a *GapError.
	ErrGap = errors.New("leasehold: an earlier event is missing")
	// ErrStaleToken: a later lease was here before. The error is a *StaleTokenError. Trying
	// again is in vain.
	ErrStaleToken = errors.New("leasehold: stale fencing token")
)

// GapError says which event a Gapless inbox waits for.
type GapError struct {
	ExecutionID uuid.UUID
	Want        int64 // the sequence of the next event
	Got         int64 // the sequence of the event that came, greater than Want
}

func (e *GapError) Error() string {
	return fmt.Sprintf("%v: execution %s, want sequence %d, got %d", ErrGap, e.ExecutionID, e.Want, e.Got)
}

func (e *GapError) Unwrap() error { return ErrGap }

// StaleTokenError says which token was refused, and because of which.
type StaleTokenError struct {
	Resource string
	Token    int64 // that was refused
	Newest   int64 // the greatest that the resource has seen
}

func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("%v: %s has seen %d, refused %d", ErrStaleToken, e.Resource, e.Newest, e.Token)
}

func (e *StaleTokenError) Unwrap() error { return ErrStaleToken }
