package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Watch counts the codes that clients get, those of single items of batches and those with which
// streams end too.
type Watch struct {
	mu    sync.Mutex
	codes map[codes.Code]int
	bugs  []string
}

// Codes tells how often each code came.
func (w *Watch) Codes() map[codes.Code]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.codes)
}

// Bugs are the answers that no client should ever get: INTERNAL, UNKNOWN and DATA_LOSS.
func (w *Watch) Bugs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.bugs...)
}

func (w *Watch) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	w.note(method, status.Code(err), err)
	if err == nil {
		for _, item := range itemErrors(reply) {
			w.note(method, codes.Code(item.GetCode()), status.ErrorProto(item))
		}
	}
	return err
}

func (w *Watch) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		w.note(method, status.Code(err), err)
		return nil, err
	}
	return &watchedStream{ClientStream: stream, watch: w, method: method}, nil
}

// watchedStream notes how a stream ends.
type watchedStream struct {
	grpc.ClientStream
	watch  *Watch
	method string
}

// RecvMsg waits for the next message, or the end.
func (s *watchedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case errors.Is(err, io.EOF):
		s.watch.note(s.method, codes.OK, nil)
	case err != nil:
		s.watch.note(s.method, status.Code(err), err)
	}
	return err
}

func (w *Watch) note(method string, code codes.Code, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.codes == nil {
		w.codes = map[codes.Code]int{}
	}
	w.codes[code]++
	if code == codes.Internal || code == codes.Unknown || code == codes.DataLoss {
		w.bugs = append(w.bugs, fmt.Sprintf("%s: %v", method, err))
	}
}

// itemErrors are the errors inside the answer of a batch.
func itemErrors(reply any) []*rpcstatus.Status {
	var list []*rpcstatus.Status
	keep := func(s *rpcstatus.Status) {
		if s != nil {
			list = append(list, s)
		}
	}
	switch r := reply.(type) {
	case *leaseholdv1.BatchEnqueueExecutionsResponse:
		for _, one := range r.GetResults() {
			keep(one.GetError())
		}
	case *leaseholdv1.BatchRenewLeasesResponse:
		for _, one := range r.GetResults() {
			keep(one.GetError())
		}
	case *leaseholdv1.BatchReportAttemptsResponse:
		for _, one := range r.GetResults() {
			keep(one.GetError())
		}
	}
	return list
}
