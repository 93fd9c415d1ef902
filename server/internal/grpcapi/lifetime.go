package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/stats"
)

// Why a stream is ended though its caller is still there.
var (
	errServerStops   = errors.New("the server is stopping")
	errConnectionOld = errors.New("the connection becomes too old")
)

// streamEndedError says that a stream was ended, and how far it had come.
type streamEndedError struct {
	revision int64
	cause    error
}

func (e *streamEndedError) Error() string {
	return fmt.Sprintf("the stream was ended: %v; call again with after_revision %d", e.cause, e.revision)
}

// endedEarly is the error of a stream whose context ended for one of those reasons; any other
// error, or none, stays as it is.
func endedEarly(ctx context.Context, err error, revision int64) error {
	cause := context.Cause(ctx)
	if err != nil && (errors.Is(cause, errServerStops) || errors.Is(cause, errConnectionOld)) {
		return &streamEndedError{revision: revision, cause: cause}
	}
	return err
}

// untilOld is a stream's context, which ends before gRPC cuts the stream's connection.
//
// gRPC tells the client to connect anew once the connection has MaxConnectionAge, give or take a
// tenth, and cuts it ageGrace later. So a stream may live until the earliest instant of that, or,
// if it was opened later, for a part of the grace.
func untilOld(ctx context.Context, maxAge time.Duration) (context.Context, context.CancelFunc) {
	now := time.Now() // monotonic
	earliest := now
	if born, known := ctx.Value(birth{}).(time.Time); known {
		earliest = born.Add(maxAge - maxAge/10)
	}
	if earliest.Before(now) {
		earliest = now
	}
	return context.WithDeadlineCause(ctx, earliest.Add(min(ageGrace/2, maxAge/10)), errConnectionOld)
}

// birth is the key of the instant at which a connection was accepted.
type birth struct{}

// birthNotes notes in each connection's context when it was accepted.
type birthNotes struct{}

var _ stats.Handler = birthNotes{}

// TagConn notes the instant.
func (birthNotes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, birth{}, time.Now()) // monotonic
}

// TagRPC adds nothing.
func (birthNotes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC has nothing to do.
func (birthNotes) HandleRPC(context.Context, stats.RPCStats) {}

// HandleConn has nothing to do.
func (birthNotes) HandleConn(context.Context, stats.ConnStats) {}
