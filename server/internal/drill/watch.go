package drill

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Watch counts the codes that clients get, those of single items of batches too.
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
