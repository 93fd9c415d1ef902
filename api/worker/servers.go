package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	// callTimeout bounds every call but polls, so that a server that hangs is a failure like
	// others.
	callTimeout = 10 * time.Second
	// callPatience is how long a call may take before its server counts as failing: what is
	// called next goes to others first, or at least through another connection. The call
	// itself goes on.
	callPatience = 5 * time.Second
	// avoidCap bounds how long a server that fails is not asked again.
	avoidCap = 30 * time.Second
	// failoverWait is the longest wait before another server is asked.
	failoverWait = 50 * time.Millisecond
	// connectLead is how long before a further try the connection is told to try, too.
	connectLead = 500 * time.Millisecond
)

var (
	// errSlow stands for an answer that is still awaited.
	errSlow   = errors.New("no answer in time")
	errClosed = errors.New("the worker does not run any more")
)

// servers is the addresses of the servers, with one connection to those that are in use. A
// call goes to the first in this worker's own order that does not fail; one that failed is
// asked again when its time has come and a connection to it stands, so that trying it costs
// the calls nothing.
type servers struct {
	dial func(address string) (link, error)
	log  *slog.Logger

	mu     sync.Mutex
	list   []*server
	reach  reach
	closed bool
}

// server is one address.
type server struct {
	address  string
	link     *link     // nil: none at the moment
	failures int       // in a row
	until    time.Time // not asked before, unless all fail; zero: it does not fail
}

// link is a connection, which the calls through it share.
type link struct {
	conn   grpc.ClientConnInterface
	client leaseholdv1.WorkerServiceClient
	own    *grpc.ClientConn // to be closed here; nil: it is the host program's

	calls   int  // under way
	failed  bool // one of them did
	dropped bool // takes no further call, and is closed after the last
}

// bounds are those of a call.
type bounds struct {
	limit    time.Duration // it is given up
	patience time.Duration // its server counts as failing, and the call goes on
	slow     func()        // called then, unless it is nil
}

// newServers prepares the connections, and finds out whether the addresses are well-formed.
func newServers(cfg Config) (*servers, error) {
	s := &servers{log: cfg.Logger}
	if cfg.Conn != nil {
		s.dial = func(string) (link, error) {
			return link{conn: cfg.Conn, client: leaseholdv1.NewWorkerServiceClient(cfg.Conn)}, nil
		}
		s.list = []*server{{}}
		return s, nil
	}
	s.dial = func(address string) (link, error) { return dial(address, cfg.DialOptions) }
	for _, address := range cfg.addresses() {
		l, err := s.dial(address)
		if err != nil {
			s.close()
			return nil, err
		}
		s.list = append(s.list, &server{address: address, link: &l})
	}
	rand.Shuffle(len(s.list), func(i, j int) { s.list[i], s.list[j] = s.list[j], s.list[i] }) // only spreads load
	return s, nil
}

// call makes one call, and takes in what it tells about the server.
func (s *servers) call(ctx context.Context, b bounds, f func(context.Context, leaseholdv1.WorkerServiceClient) error) error {
	srv, l, err := s.take()
	if err != nil {
		return err
	}
	defer s.release(l)
	slow := time.AfterFunc(b.patience, func() {
		s.failed(srv, l, errSlow)
		if b.slow != nil {
			b.slow()
		}
	})
	limited, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	err = fromWire(f(limited, l.client))
	slow.Stop()
	switch {
	case err == nil:
		s.answered(srv)
	case ctx.Err() != nil: // the caller left
	case isAway(err):
		s.failed(srv, l, err)
	default:
		s.answered(srv)
	}
	return err
}

// isAway reports whether an error means that this server cannot serve now, while another one
// might.
func isAway(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unknown:
		return true
	case codes.ResourceExhausted:
		return hasReason(err) // without one it is gRPC's word that a message is too large
	default:
		return false
	}
}

// take chooses the server to ask, and holds its link until release.
func (s *servers) take() (*server, *link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, errClosed
	}
	now := time.Now()
	best := s.list[0]
	for _, srv := range s.list {
		if s.usable(srv, now) {
			best = srv
			break
		}
		if srv.until.Before(best.until) {
			best = srv
		}
	}
	if err := s.connect(best); err != nil {
		return nil, nil, err
	}
	best.link.calls++
	return best, best.link, nil
}

// usable reports whether calls can go to a server. One that failed gets, when its time has
// come, a connection first.
func (s *servers) usable(srv *server, now time.Time) bool {
	if srv.until.IsZero() {
		return true
	}
	if now.Before(srv.until) || s.connect(srv) != nil {
		return false
	}
	own := srv.link.own
	if own == nil {
		return true
	}
	switch own.GetState() {
	case connectivity.Ready:
		return true
	case connectivity.TransientFailure, connectivity.Shutdown:
		s.avoid(srv)
		s.drop(srv)
	default:
		own.Connect() // in the background
	}
	return false
}

// connect sees to it that a server has a link; grpc itself connects when that is used.
func (s *servers) connect(srv *server) error {
	if srv.link != nil {
		return nil
	}
	l, err := s.dial(srv.address)
	if err != nil {
		return err
	}
	srv.link = &l
	return nil
}

// release gives a link back.
func (s *servers) release(l *link) {
	s.mu.Lock()
	l.calls--
	unused := l.dropped && l.calls == 0
	s.mu.Unlock()
	if unused {
		_ = l.own.Close() // nothing depends on it
	}
}

// failed takes in that a server did not answer. Calls that are under way keep their link: it
// may only have been slow.
func (s *servers) failed(srv *server, l *link, err error) {
	s.mu.Lock()
	known := srv.link != l // by another call through the same connection
	if !known {
		l.failed = true
		s.reach.failed(err)
		s.avoid(srv)
		if !hasReason(err) {
			s.drop(srv)
		}
	}
	failures := srv.failures
	s.mu.Unlock()
	if !known && len(s.list) > 1 {
		s.log.Info("server fails, others are asked first", "address", srv.address, "failures", failures, "error", err)
	}
}

// avoid puts off when a server is asked again.
func (s *servers) avoid(srv *server) {
	srv.until = time.Now().Add(retryWait(srv.failures+4, avoidCap))
	srv.failures++
}

// drop makes the next call dial anew: a connection that hung may do so for long, and one that
// could not be made is tried again by grpc at times of its own.
func (s *servers) drop(srv *server) {
	l := srv.link
	if l == nil || l.own == nil {
		return
	}
	srv.link, l.dropped = nil, true
	if l.calls == 0 {
		_ = l.own.Close() // nothing depends on it
	}
}

func (s *servers) answered(srv *server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	srv.failures, srv.until = 0, time.Time{}
	s.reach.answered(srv.address)
}

// count is how many servers there are.
func (s *servers) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

// spare reports whether a server is left that does not fail.
func (s *servers) spare() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.list, func(srv *server) bool { return srv.until.IsZero() })
}

// pause waits before the next try of a call that failed: hardly, if another server can be
// asked. It reports false if ctx ended. A connection that the host program gave may itself be
// waiting, for up to two minutes, and fails calls meanwhile; it is told to try now, a little
// before the call.
func (s *servers) pause(ctx context.Context, wait time.Duration, err error) bool {
	if isAway(err) && s.spare() {
		return sleep(ctx, rand.N(failoverWait)) // only spreads load
	}
	lead := min(wait, connectLead)
	if !sleep(ctx, wait-lead) {
		return false
	}
	s.hurry()
	return sleep(ctx, lead)
}

func (s *servers) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, srv := range s.list {
		if srv.link == nil {
			continue
		}
		if c, ok := srv.link.conn.(interface{ ResetConnectBackoff() }); ok {
			c.ResetConnectBackoff()
		}
	}
}

// close closes the connections that were made here.
func (s *servers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, srv := range s.list {
		if l := srv.link; l != nil && l.own != nil {
			_ = l.own.Close() // nothing depends on it
		}
	}
}
