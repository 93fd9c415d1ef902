package worker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// defaultMessageBytes is the largest message that gRPC takes unless told otherwise.
const defaultMessageBytes = 4 << 20

// session is a registration and the server's limits that came with it. It never changes; a
// new registration makes a new one.
type session struct {
	workerID   string
	id         string
	name       string
	wait       time.Duration // how long polls wait
	lease      time.Duration // how long leases are asked for
	maxPayload int           // bytes; 0: not told
	maxMessage int           // bytes; 0: not told
	maxBatch   int           // bytes of what is gathered into a call
	opts       []grpc.CallOption
}

func newSession(cfg Config, resp *leaseholdv1.RegisterWorkerResponse) *session {
	s := &session{
		workerID:   resp.GetWorkerId(),
		id:         resp.GetSessionId(),
		name:       resp.GetName(),
		wait:       cfg.WaitTimeout,
		lease:      cfg.LeaseDuration,
		maxPayload: int(resp.GetMaxPayloadBytes()),
		maxMessage: int(resp.GetMaxMessageBytes()),
	}
	if longest := resp.GetMaxWaitTimeout().AsDuration(); longest > 0 {
		s.wait = min(s.wait, longest)
	}
	if longest := resp.GetMaxLeaseDuration().AsDuration(); longest > 0 {
		s.lease = min(s.lease, longest)
	}
	s.lease = max(s.lease, resp.GetMinLeaseDuration().AsDuration())
	s.maxBatch = defaultMessageBytes / 4
	if s.maxMessage > 0 {
		s.maxBatch = min(s.maxBatch, s.maxMessage/4)
	}
	// Without this an answer over 4 MiB is refused here after its leases were granted there.
	s.opts = []grpc.CallOption{grpc.MaxCallRecvMsgSize(max(s.maxMessage, defaultMessageBytes))}
	return s
}

// register opens a session and tries until it has one, ctx ends or, for the first, the server
// says that trying will not help. A name that the server made is kept by passing it back in.
func (r *run) register(ctx context.Context, name string, first bool) (*session, error) {
	req := &leaseholdv1.RegisterWorkerRequest{
		Namespace:    r.cfg.Namespace,
		Name:         name,
		Node:         r.cfg.Node,
		Capabilities: r.capabilities(),
		Slots:        int32(r.cfg.Slots), // validated: at most 10,000
		Version:      r.cfg.Version,
		Labels:       r.cfg.Labels,
		RequestId:    uuid.NewString(), // the same on each try: one session, and one name if the server makes it
	}
	for try := 0; ; try++ {
		s, err := r.tryRegister(ctx, req)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if first && isMisconfigured(err) {
			return nil, fmt.Errorf("leasehold: register worker: %w", err)
		}
		r.outage.failed(r.log, "register", err)
		if !r.servers.pause(ctx, retryWait(try, backoffCap), err) {
			return nil, ctx.Err()
		}
	}
}

func (r *run) tryRegister(ctx context.Context, req *leaseholdv1.RegisterWorkerRequest) (*session, error) {
	var resp *leaseholdv1.RegisterWorkerResponse
	err := r.call(ctx, func(ctx context.Context, c leaseholdv1.WorkerServiceClient) (err error) {
		resp, err = c.RegisterWorker(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	s := newSession(r.cfg, resp)
	r.session.Store(s)
	r.log.Info("worker registered", "worker_id", s.workerID, "name", s.name, "session_id", s.id, "capabilities", req.GetCapabilities())
	return s, nil
}

func (r *run) capabilities() []string {
	names := make([]string, 0, len(r.handlers))
	for name := range r.handlers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// drain tells the servers that the session takes no more; best effort, for they would find
// out by themselves.
func (r *run) drain(ctx context.Context, s *session) error {
	err := r.call(ctx, func(ctx context.Context, c leaseholdv1.WorkerServiceClient) error {
		_, err := c.DrainWorker(ctx, &leaseholdv1.DrainWorkerRequest{WorkerId: s.workerID, SessionId: s.id})
		return err
	})
	if err != nil {
		r.log.Debug("worker not drained", "error", err)
	}
	return err
}

// deregister ends the session; best effort too. Leases that could not be handed back keep
// it: they run out by themselves.
func (r *run) deregister(ctx context.Context, s *session) {
	err := r.call(ctx, func(ctx context.Context, c leaseholdv1.WorkerServiceClient) error {
		_, err := c.DeregisterWorker(ctx, &leaseholdv1.DeregisterWorkerRequest{WorkerId: s.workerID, SessionId: s.id})
		return err
	})
	if err != nil {
		r.log.Debug("worker not deregistered", "error", err)
		return
	}
	r.log.Info("worker deregistered", "worker_id", s.workerID, "name", s.name)
}

// call is servers.call with the usual bounds.
func (r *run) call(ctx context.Context, f func(context.Context, leaseholdv1.WorkerServiceClient) error) error {
	return r.servers.call(ctx, bounds{limit: callTimeout, patience: callPatience}, f)
}
