//go:build crashpoints

package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

// A server with crash points ends itself by SIGKILL when it passes the one that the variable
// LEASEHOLD_CRASH_AT names. It appends the names of those that it passes, each once, to the file
// LEASEHOLD_CRASH_LOG. The points are before and after
//
//	commit NAME     a transaction's commit, by its name
//	publish TYPE    an event is handed to the sink, by its type
//	answer METHOD   a call is answered, by its full method; for a stream, its end
//	message METHOD  a stream's message is sent
//
// as in "before commit enqueue".

// pass is called at a crash point.
func pass(point string) {
	if log := os.Getenv("LEASEHOLD_CRASH_LOG"); log != "" {
		if _, known := passed.LoadOrStore(point, true); !known {
			note(log, point)
		}
	}
	if point == os.Getenv("LEASEHOLD_CRASH_AT") {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until it comes
	}
}

var passed sync.Map // names of points

func note(path, point string) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := fmt.Fprintln(file, point); err != nil {
		panic(err)
	}
}

func crashAroundCommits(transaction string, done bool) {
	if done {
		pass("after commit " + transaction)
	} else {
		pass("before commit " + transaction)
	}
}

// crashingPublisher is a sink with crash points around it.
type crashingPublisher struct{ outbox.Publisher }

func crashAround(p outbox.Publisher) outbox.Publisher { return crashingPublisher{p} }

// Publish passes two points.
func (p crashingPublisher) Publish(ctx context.Context, e *outbox.Event) error {
	pass("before publish " + e.Type)
	err := p.Publisher.Publish(ctx, e)
	pass("after publish " + e.Type)
	return err
}

func crashAroundAnswers() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			answer, err := handler(ctx, req)
			pass("before answer " + info.FullMethod)
			return answer, err
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			err := handler(srv, crashingStream{stream, info.FullMethod})
			pass("before answer " + info.FullMethod)
			return err
		}),
		grpc.StatsHandler(answered{}),
	}
}

// crashingStream passes a point before and after each message.
type crashingStream struct {
	grpc.ServerStream
	method string
}

// SendMsg leaves the message some time to be written before the second point.
func (s crashingStream) SendMsg(m any) error {
	pass("before message " + s.method)
	err := s.ServerStream.SendMsg(m)
	arrive("after message " + s.method)
	return err
}

// answered hears when answers were handed to the connection.
type answered struct{}

type methodKey struct{}

// TagRPC keeps the method for HandleRPC.
func (answered) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, methodKey{}, info.FullMethodName)
}

// HandleRPC passes the point after an answer.
func (answered) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ended := s.(*stats.End); ended {
		method, _ := ctx.Value(methodKey{}).(string)
		arrive("after answer " + method)
	}
}

// TagConn adds nothing.
func (answered) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn is not interested.
func (answered) HandleConn(context.Context, stats.ConnStats) {}

// arrive passes a point when what was written has had time to reach the peer.
func arrive(point string) {
	if point == os.Getenv("LEASEHOLD_CRASH_AT") {
		time.Sleep(20 * time.Millisecond)
	}
	pass(point)
}
