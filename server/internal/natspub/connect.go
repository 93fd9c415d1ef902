package natspub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	connectTimeout = 5 * time.Second // dial and handshake, for each address

	// A server that takes no bytes for so long is left. The client writes under its lock.
	writeTimeout = 5 * time.Second

	// A silent server is left after two pings without an answer. The client's own interval, two
	// minutes, would let every event run into its timeout for as long.
	pingInterval = 10 * time.Second

	firstDelay = 100 * time.Millisecond
	maxDelay   = 5 * time.Second
)

// connect returns a connection that looks for a server for ever, connected or not yet. It takes
// a list, because a password with a comma would break the client's own separation.
func connect(s *settings, closed chan<- struct{}) (*nats.Conn, error) {
	options := nats.GetDefaultOptions()
	watch := &watcher{log: s.log, servers: s.names}
	for _, set := range []nats.Option{
		nats.Name("leasehold"),
		nats.Timeout(connectTimeout),
		nats.FlusherTimeout(writeTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(2),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // else two refusals end it for good
		nats.CustomReconnectDelay(delay),
		nats.ReconnectBufSize(-1),
		nats.ConnectHandler(watch.connected),
		nats.ReconnectHandler(watch.connected),
		nats.DisconnectErrHandler(watch.disconnected),
		nats.ReconnectErrHandler(watch.failed),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { watch.complained(err) }),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
	} {
		if err := set(&options); err != nil {
			return nil, fmt.Errorf("set up the NATS client: %w", err)
		}
	}
	options.Servers = s.servers
	conn, err := options.Connect()
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", s.names, err)
	}
	return conn, nil
}

// delay before the given round of tries (from 1): doubling, between half of it and all of it.
func delay(round int) time.Duration {
	full := maxDelay
	if round < 7 {
		full = min(maxDelay, firstDelay<<max(0, round-1))
	}
	return full/2 + rand.N(full/2)
}

// watcher tells what happens to the connection; of failing tries the first.
type watcher struct {
	log     *slog.Logger
	servers string
	told    atomic.Bool
}

func (w *watcher) connected(conn *nats.Conn) {
	w.told.Store(false)
	w.log.Info("connected to NATS", "server", conn.ConnectedAddr())
}

func (w *watcher) disconnected(conn *nats.Conn, err error) {
	if conn.IsClosed() {
		return // by us
	}
	w.log.Warn("lost the connection to NATS, trying again", "servers", w.servers, "error", err)
}

func (w *watcher) failed(_ *nats.Conn, err error) {
	level := slog.LevelDebug
	if !w.told.Swap(true) {
		level = slog.LevelWarn
	}
	w.log.Log(context.Background(), level, "cannot reach NATS, trying again", "servers", w.servers, "error", err)
}

// complained takes what the server says outside of an answer, such as that we may not publish
// to a subject (the publish itself then gets no answer).
func (w *watcher) complained(err error) {
	if errors.Is(err, nats.ErrAuthorization) && w.told.Swap(true) {
		return // at every try
	}
	w.log.Warn("NATS complains", "servers", w.servers, "error", err)
}
