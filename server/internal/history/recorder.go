package history

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// chunk is how many ops are kept together, so that a long history is never copied while it grows.
const chunk = 4096

// Recorder notes what clients do. It is safe for concurrent use; the zero value keeps everything
// in memory.
type Recorder struct {
	mu         sync.Mutex
	chunks     [][]Op
	deliveries []Delivery
	sink       bool
	calls      uint64
	open       map[uint64][]Op

	log io.Writer // instead of memory
	err error
}

// NewLog makes a recorder that keeps nothing in memory but writes lines which Read reads: each
// call before it is sent and when it is answered, a line with one Write, so that a process that is
// killed leaves all that it did. Use a file of its own without a buffer.
func NewLog(w io.Writer) *Recorder {
	r := &Recorder{log: w}
	r.write(line{Clock: clockName()})
	return r
}

// Err is the first error of the log.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Unary records the calls of a client. Put it around whatever else repeats or alters calls: what
// that does is then one call, and an answer that is lost between is not seen twice.
func (r *Recorder) Unary(client string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ops := asked(req)
		for i := range ops {
			if ops[i].Client = client; ops[i].Kind == Other {
				ops[i].Key = method
			}
		}
		id := r.begin(ops)
		err := invoke(ctx, method, req, reply, cc, opts...)
		r.end(id, answered(ops, reply, err))
		return err
	}
}

// Working records that user code begins to work on a lease; call what it returns when it stops.
func (r *Recorder) Working(client string, lease *leaseholdv1.Lease) (stopped func()) {
	ops := []Op{{
		Kind: Work, Client: client, Outcome: Unknown, Execution: parse(lease.GetExecutionId()), Step: parse(lease.GetStepId()),
		Attempt: parse(lease.GetAttemptId()), Version: lease.GetLeaseVersion(), Number: lease.GetAttemptNumber(),
	}}
	id := r.begin(ops)
	return sync.OnceFunc(func() {
		done := ops[0]
		done.Outcome = OK
		r.end(id, []Op{done})
	})
}

// Delivered records an event as it arrives, before it is acknowledged. It sets the time.
func (r *Recorder) Delivered(d Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d.At, r.sink = monotonic(), true // under the lock, so that the order is that of the times
	if r.log != nil {
		r.write(line{Sink: true, Delivery: &d})
		return
	}
	r.deliveries = append(r.deliveries, d)
}

// Consumes says that this recorder hears of every delivery, also where none comes.
func (r *Recorder) Consumes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sink = true
	if r.log != nil {
		r.write(line{Sink: true})
	}
}

// History is what was recorded so far. Calls without an answer are of unknown outcome. A recorder
// that writes a log has none.
func (r *Recorder) History() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := History{Clock: clockName(), Sink: r.sink, Ops: slices.Concat(r.chunks...), Deliveries: slices.Clone(r.deliveries)}
	for _, ops := range r.open {
		h.Ops = append(h.Ops, ops...)
	}
	return h
}

// begin notes a call before it is sent.
func (r *Recorder) begin(ops []Op) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	now := monotonic()
	for i := range ops {
		ops[i].Begin = now
	}
	if !worthKeeping(ops) {
		return r.calls
	}
	if r.log != nil {
		r.write(line{Call: r.calls, Ops: ops})
		return r.calls
	}
	if r.open == nil {
		r.open = map[uint64][]Op{}
	}
	r.open[r.calls] = ops
	return r.calls
}

// worthKeeping leaves out what nothing is decided by while it is open.
func worthKeeping(ops []Op) bool {
	return len(ops) > 0 && ops[0].Kind != Get && ops[0].Kind != Other
}

// end notes what became of a call.
func (r *Recorder) end(call uint64, ops []Op) {
	now := monotonic()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, call)
	for i := range ops {
		ops[i].End = now
	}
	if r.log != nil {
		r.write(line{Call: call, Ops: ops, Ended: true})
		return
	}
	for len(ops) > 0 {
		if n := len(r.chunks); n == 0 || len(r.chunks[n-1]) == chunk {
			r.chunks = append(r.chunks, make([]Op, 0, chunk))
		}
		last := &r.chunks[len(r.chunks)-1]
		n := min(len(ops), chunk-len(*last))
		*last = append(*last, ops[:n]...)
		ops = ops[n:]
	}
}

// write writes a line of the log, under the lock.
func (r *Recorder) write(l line) {
	text, err := json.Marshal(l)
	if err == nil {
		_, err = r.log.Write(append(text, '\n'))
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("write a history: %w", err)
	}
}

// parse reads an id; what is none is the nil id, which nothing has.
func parse(s string) uuid.UUID {
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil
	}
	return id
}
