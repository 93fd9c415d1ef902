package natspub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

var (
	// ErrClosed is what Publish returns once Close was called.
	ErrClosed = errors.New("the publisher to NATS is closed")
	// ErrNotConnected is what Publish wraps while no server is connected. It is worth a later try.
	ErrNotConnected = errors.New("not connected to NATS")
)

// Publisher publishes events to a JetStream stream. It is safe for concurrent use.
type Publisher struct {
	*settings
	conn   *nats.Conn
	js     jetstream.JetStream
	closed chan struct{} // when the client has ended

	mu    sync.Mutex // guards ended, and sends against Add during Wait
	ended bool
	sends sync.WaitGroup
}

var _ outbox.Publisher = (*Publisher)(nil)

// New connects to NATS and makes the stream if asked to. It does not need a server: while none
// can be reached, it returns after one try of each (5 s for each address) and goes on trying.
// It fails if the configuration is wrong, which includes a stream that the server refuses to
// make as asked for. ctx bounds the making of the stream. The caller owns the Publisher and
// ends it by Close.
func New(ctx context.Context, cfg Config) (*Publisher, error) {
	s, err := cfg.check()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", s.names, err)
	}
	closed := make(chan struct{})
	conn, err := connect(s, closed)
	if err != nil {
		return nil, err
	}
	p := &Publisher{settings: s, conn: conn, closed: closed}
	if p.js, err = jetstream.New(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("use JetStream: %w", err), p.Close())
	}
	if err := p.prepareStream(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Publish sends the event and waits for the stream's acknowledgement, at most for the timeout
// of the configuration. An event that is larger than the server or the stream takes, or that is
// no CloudEvent, is a *outbox.RefusedError. All else is worth a later try: no connection
// (ErrNotConnected), no stream for the subject, no acknowledgement in time (which leaves open
// whether the stream has it; a repeat has the same Nats-Msg-Id).
func (p *Publisher) Publish(ctx context.Context, e *outbox.Event) error {
	msg, err := p.message(e)
	if err != nil {
		return &outbox.RefusedError{Cause: err}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout,
		fmt.Errorf("no acknowledgement within %s: %w", p.timeout, context.DeadlineExceeded))
	defer cancel()
	err = p.send(ctx, msg)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("publish event %s to %s: %w", e.ID, msg.Subject, classify(err))
}

// Close ends the connection. Calls of Publish that wait fail at once; nothing is sent after it
// returned. It may wait for a try to connect that goes on (5 s for each address).
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.conn.Close()
	p.sends.Wait()
	<-p.closed
	return nil
}

func (p *Publisher) message(e *outbox.Event) (*nats.Msg, error) {
	c, err := outbox.CloudEvent(e, p.source)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("event %s as JSON: %w", e.ID, err)
	}
	msg := nats.NewMsg(p.subject.subject(e))
	msg.Header.Set("content-type", event.ApplicationCloudEventsJSON)
	msg.Header.Set(nats.MsgIdHdr, e.ID.String())
	msg.Data = body
	return msg, nil
}

// send delivers in a goroutine of its own, because the client does not look at ctx while it
// writes, dials or looks up a name, all under its lock. What it sends after ctx ended is a
// repeat that came late, or the first delivery of an event that will be sent again.
func (p *Publisher) send(ctx context.Context, msg *nats.Msg) error {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return ErrClosed
	}
	p.sends.Add(1)
	p.mu.Unlock()

	done := make(chan error, 1)
	go func() {
		defer p.sends.Done()
		done <- p.deliver(ctx, msg)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// deliver makes the stream when none took the message, if asked to, and tries once more.
func (p *Publisher) deliver(ctx context.Context, msg *nats.Msg) error {
	_, err := p.js.PublishMsg(ctx, msg)
	if p.stream == "" || !errors.Is(err, jetstream.ErrNoStreamResponse) {
		return err
	}
	if err := p.createStream(ctx); err != nil {
		return err
	}
	_, err = p.js.PublishMsg(ctx, msg)
	return err
}

// classify tells what is refused for good, and gives the client's words a meaning.
func classify(err error) error {
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
		return &outbox.RefusedError{Cause: err}
	case errors.Is(err, nats.ErrConnectionClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case errors.Is(err, nats.ErrDisconnected): // while it waited
		return &outbox.AwayError{Cause: fmt.Errorf("%w: %w", ErrNotConnected, err)}
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders): // no stream, or it has no leader
		return &outbox.AwayError{Cause: err}
	case errors.Is(err, nats.ErrReconnectBufExceeded), // we keep no such buffer
		errors.Is(err, nats.ErrHeadersNotSupported): // so says a client that never met a server
		return &outbox.AwayError{Cause: ErrNotConnected}
	default:
		return err
	}
}
