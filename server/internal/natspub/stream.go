package natspub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// streamTimeout bounds the making of the stream at the start.
const streamTimeout = 5 * time.Second

// prepareStream makes the stream at the start, if asked to and if a server is there, so that a
// wrong configuration is seen at once. Whatever else fails is tried again by Publish.
func (p *Publisher) prepareStream(ctx context.Context) error {
	if p.stream == "" || !p.conn.IsConnected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	_, err := p.js.Stream(ctx, p.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = p.createStream(ctx)
	}
	if err == nil {
		return nil
	}
	var refused *jetstream.APIError
	if errors.As(err, &refused) && refused.Code == http.StatusBadRequest {
		return err
	}
	p.log.Warn("cannot make the stream yet", "stream", p.stream, "error", err)
	return nil
}

// createStream makes the stream unless it exists, however that one is configured. Several may
// do it at once: the server takes equal requests as one.
func (p *Publisher) createStream(ctx context.Context) error {
	_, err := p.js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        p.stream,
		Description: "Events of Leasehold",
		Subjects:    []string{p.subject.wildcard()},
	})
	switch {
	case err == nil:
		p.log.Info("the stream is there", "stream", p.stream, "subjects", p.subject.wildcard())
	case !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
		return fmt.Errorf("create stream %s for %s: %w", p.stream, p.subject.wildcard(), err)
	}
	return nil
}
