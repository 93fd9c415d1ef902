package grpcapi

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strings"

	"buf.build/go/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	validation "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
)

// unaryChain is what unary calls go through, from the outside in.
func unaryChain(logger *slog.Logger, failures errorMapper, check protovalidate.Validator) []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{
		logging.UnaryServerInterceptor(callLogger(logger), loggingOptions()...),
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(recovered(logger))),
		failures.unary,
		selector.UnaryServerInterceptor(validation.UnaryServerInterceptor(check), selector.MatchFunc(isOurs)),
	}
}

// streamChain is what streams go through, from the outside in.
func streamChain(stopping context.Context, logger *slog.Logger, failures errorMapper, check protovalidate.Validator) []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		logging.StreamServerInterceptor(callLogger(logger), loggingOptions()...),
		recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(recovered(logger))),
		failures.stream,
		endedBy(stopping),
		selector.StreamServerInterceptor(validation.StreamServerInterceptor(check), selector.MatchFunc(isOurs)),
	}
}

// isOurs tells the services of the wire contract from health and reflection, whose messages
// have no rules.
func isOurs(_ context.Context, call interceptors.CallMeta) bool {
	return !strings.HasPrefix(call.Service, "grpc.")
}

func callLogger(logger *slog.Logger) logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		logger.Log(ctx, slog.Level(level), msg, fields...)
	})
}

func loggingOptions() []logging.Option {
	return []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithLevels(logLevel),
		logging.WithCodes(loggedCode),
		logging.WithDisableLoggingFields(logging.SystemTag[0], logging.ComponentFieldKey, logging.MethodTypeFieldKey),
	}
}

// recovered answers a call that panicked; the server lives on.
func recovered(logger *slog.Logger) recovery.RecoveryHandlerFuncContext {
	return func(ctx context.Context, p any) error {
		method, _ := grpc.Method(ctx)
		logger.ErrorContext(ctx, "a handler panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
		return internalError()
	}
}

// endedBy ends the contexts of streams when the server stops, with the cause of that: they would
// hold up a graceful stop to its bound.
func endedBy(stopping context.Context) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, cancel := context.WithCancelCause(stream.Context())
		defer cancel(nil)
		defer context.AfterFunc(stopping, func() { cancel(context.Cause(stopping)) })()
		return handler(srv, &boundStream{ServerStream: stream, ctx: ctx})
	}
}

// boundStream is a stream with a context of its own.
type boundStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context is the stream's context, which ends with the server too.
func (s *boundStream) Context() context.Context { return s.ctx }
