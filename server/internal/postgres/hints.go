package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/scheduler"
)

var _ scheduler.Hints = (*Hints)(nil)

const (
	channel      = "leasehold"
	hintInterval = 25 * time.Millisecond // hints of that time travel together
	hearTimeout  = 30 * time.Second      // then the connection is asked whether it lives
	pingTimeout  = 5 * time.Second
)

// Hints carries hints between replicas by NOTIFY: gathered, outside every transaction that
// writes, at most one statement every 25 ms. It hears on a connection of its own.
type Hints struct {
	store   *Store
	config  *pgx.ConnConfig
	log     *slog.Logger
	self    string // marks our own, which we do not need to hear
	mu      sync.Mutex
	pending map[scheduler.Hint]bool
	wake    chan struct{}
}

// NewHints makes the hints of a store. listenURL is for the connection that hears: behind a
// pooler that shares sessions it must lead to PostgreSQL itself.
func NewHints(store *Store, listenURL string) (*Hints, error) {
	cfg, err := pgx.ParseConfig(listenURL)
	if err != nil {
		return nil, fmt.Errorf("listen url: %w", err)
	}
	sessionSettings(cfg)
	return &Hints{
		store: store, config: cfg, log: store.log, self: uuid.NewString(),
		pending: map[scheduler.Hint]bool{}, wake: make(chan struct{}, 1),
	}, nil
}

// Send passes hints on soon. It never waits.
func (h *Hints) Send(hints ...scheduler.Hint) {
	h.mu.Lock()
	for _, hint := range hints {
		h.pending[hint] = true
	}
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Run sends and hears until the context ends.
func (h *Hints) Run(ctx context.Context, hear func(scheduler.Hint)) error {
	var wg sync.WaitGroup
	wg.Go(func() { h.send(ctx) })
	h.listen(ctx, hear)
	wg.Wait()
	return nil
}

func (h *Hints) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		payload := h.take()
		if payload == "" {
			continue
		}
		// A hint that cannot be sent is lost: every loop also looks by itself.
		if err := h.store.reads.Notify(ctx, payload); err != nil && ctx.Err() == nil {
			h.log.Debug("hint was not sent", "error", err)
		}
		if !sleep(ctx, hintInterval) {
			return
		}
	}
}

func (h *Hints) take() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) == 0 {
		return ""
	}
	parts := []string{h.self}
	for hint := range h.pending {
		parts = append(parts, string(hint))
	}
	clear(h.pending)
	return strings.Join(parts, " ")
}

// listen hears, and connects again when the connection is lost: soon at first, then with
// growing pauses, with one line in the log for each loss and each return.
func (h *Hints) listen(ctx context.Context, hear func(scheduler.Hint)) {
	failures := 0
	for ctx.Err() == nil {
		err := h.hear(ctx, hear, func() {
			if failures > 0 {
				h.log.Info("listening for hints again", "failures", failures)
			}
			failures = 0
		})
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errPooled) { // for ever: LISTEN would seem to work, and nothing would come
			h.log.Warn("hints of other replicas are not heard: their work is found by looking", "error", err)
			return
		}
		if failures == 0 {
			h.log.Warn("connection for hints was lost", "error", err)
		}
		failures++
		wait := min(100*time.Millisecond<<min(failures, 6), 5*time.Second)
		if !sleep(ctx, wait/2+rand.N(wait/2)) {
			return
		}
	}
}

func (h *Hints) hear(ctx context.Context, hear func(scheduler.Hint), connected func()) error {
	conn, err := pgx.ConnectConfig(ctx, h.config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := checkOwnSession(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	connected()
	h.store.observer.HintsHeard()
	for _, hint := range []scheduler.Hint{scheduler.HintWork, scheduler.HintSlots, scheduler.HintSession, scheduler.HintChange} {
		hear(hint) // whatever was missed
	}
	for {
		if err := h.next(ctx, conn, hear); err != nil {
			return err
		}
		h.store.observer.HintsHeard()
	}
}

func (h *Hints) next(ctx context.Context, conn *pgx.Conn, hear func(scheduler.Hint)) error {
	wait, cancel := context.WithTimeout(ctx, hearTimeout)
	n, err := conn.WaitForNotification(wait)
	timedOut := wait.Err() != nil && ctx.Err() == nil
	cancel()
	if timedOut {
		alive, cancel := context.WithTimeout(ctx, pingTimeout)
		defer cancel()
		return conn.Ping(alive)
	}
	if err != nil {
		return err
	}
	parts := strings.Fields(n.Payload)
	if len(parts) == 0 || parts[0] == h.self {
		return nil
	}
	for _, p := range parts[1:] {
		hear(scheduler.Hint(p))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
