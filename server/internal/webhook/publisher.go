package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

const (
	maxConns     = 64 // to the receiver, at once; more calls wait within their timeout
	maxIdleConns = 16
	idleTimeout  = 30 * time.Second
)

// ErrClosed is what Publish wraps once Close was called.
var ErrClosed = errors.New("the publisher to the webhook is closed")

// Publisher posts events to one URL. It is safe for concurrent use.
type Publisher struct {
	*settings
	transport *http.Transport
	closing   chan struct{}

	mu    sync.Mutex // guards ended, and calls against Add during Wait
	ended bool
	calls sync.WaitGroup
}

var _ outbox.Publisher = (*Publisher)(nil)

// New makes a Publisher; nothing is sent yet. It fails if the configuration is wrong. The
// caller owns it and ends it by Close.
func New(cfg Config) (*Publisher, error) {
	s, err := cfg.check()
	if err != nil {
		return nil, err
	}
	if len(s.signers) == 0 && cfg.Logger != nil {
		cfg.Logger.Warn("the webhook has no secret: requests are not signed", "receiver", s.name)
	}
	return &Publisher{settings: s, transport: newTransport(cfg, s.timeout), closing: make(chan struct{})}, nil
}

// newTransport speaks HTTP/1.1 only: each connection carries one call, so that a dead one is
// dropped with that call's timeout and fails no other.
func newTransport(cfg Config, timeout time.Duration) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            (&net.Dialer{Timeout: timeout}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    timeout,
		MaxConnsPerHost:        maxConns,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdleConns,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxAnswer,
		DisableCompression:     true,
		Protocols:              &protocols,
	}
}

// Publish posts the event and waits for the whole answer (its first 64 KiB), at most for the
// timeout of the configuration. A status of 2xx is an acknowledgement. One of 4xx but 408, 425
// and 429 is a *outbox.RefusedError, as is what is no CloudEvent. All else is worth a later
// try: other statuses, redirects among them, no complete answer in time, a connection that
// broke. If there was no connection at all, so that the receiver cannot have seen anything of
// the event, it is an *outbox.AwayError. If an answer of 408, 425, 429 or 5xx has a
// Retry-After, it is a *outbox.RetryLaterError of at most a day. The error has up to 1 KiB of
// what the receiver said.
func (p *Publisher) Publish(ctx context.Context, e *outbox.Event) error {
	c, err := outbox.CloudEvent(e, p.source)
	if err != nil {
		return &outbox.RefusedError{Cause: err}
	}
	body, err := json.Marshal(c)
	if err != nil {
		return &outbox.RefusedError{Cause: fmt.Errorf("event %s as JSON: %w", e.ID, err)}
	}
	if !p.begin() {
		return fmt.Errorf("post event %s: %w", e.ID, ErrClosed)
	}
	defer p.calls.Done()

	ctx, cancel := p.bound(ctx)
	defer cancel()
	got, err := p.post(ctx, e.ID.String(), body)
	if err == nil {
		return got.verdict(e.ID, p.name, time.Now())
	}
	return fmt.Errorf("post event %s to %s: %w", e.ID, p.name, &briefError{err})
}

// Close ends the calls that wait, and returns when they have ended. Nothing is sent after it.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if !p.ended {
		p.ended = true
		close(p.closing)
	}
	p.mu.Unlock()
	p.calls.Wait()
	p.transport.CloseIdleConnections()
	return nil
}

func (p *Publisher) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.calls.Add(1)
	return true
}

// bound ends a call's context with its timeout and with the publisher.
func (p *Publisher) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout,
		fmt.Errorf("no complete answer within %s: %w", p.timeout, context.DeadlineExceeded))
	go func() {
		select {
		case <-p.closing:
			end(ErrClosed)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); end(nil) }
}

// post makes one request. It goes to the transport itself: the client above would follow
// redirects, and name the whole URL in its errors.
func (p *Publisher) post(ctx context.Context, id string, body []byte) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL cannot be requested")
	}
	req.Header.Set("Content-Type", event.ApplicationCloudEventsJSON)
	req.Header.Set("User-Agent", "leasehold")
	if p.user != nil {
		password, _ := p.user.Password()
		req.SetBasicAuth(p.user.Username(), password)
	}
	if err := p.sign(req.Header, id, time.Now(), body); err != nil {
		return nil, err
	}
	resp, err := p.roundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := readAnswer(resp)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return got, err
}

// roundTrip tells what failed before there was a connection, which is no event's fault, from
// what failed after, which may be: an event that ends its receiver has to end DEAD some day.
func (p *Publisher) roundTrip(req *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { connected.Store(false) }, // anew, if a kept connection was dead
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	resp, err := p.transport.RoundTrip(req.WithContext(ctx))
	if err == nil {
		return resp, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if connected.Load() {
		return nil, err
	}
	return nil, &outbox.AwayError{Cause: err}
}

func (p *Publisher) sign(header http.Header, id string, now time.Time, body []byte) error {
	header.Set(standardwebhooks.HeaderWebhookID, id)
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	var signatures []string
	for _, signer := range p.signers {
		signature, err := signer.Sign(id, now, body)
		if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
		signatures = append(signatures, signature)
	}
	if len(signatures) > 0 {
		header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	}
	return nil
}
