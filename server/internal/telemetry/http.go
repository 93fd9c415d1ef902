package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of the HTTP port.
const (
	headerTimeout = 5 * time.Second
	answerTimeout = 10 * time.Second
	idleTimeout   = time.Minute
	maxHeader     = 16 << 10 // bytes
	scrapesAtOnce = 4
	stopTimeout   = 500 * time.Millisecond // for answers that are under way at the end
)

// Handler answers /metrics, /healthz and /readyz, to GET and HEAD only.
func (t *Telemetry) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(t.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapesAtOnce,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if problems := t.health.problems(r.Context()); len(problems) > 0 {
			answer(w, http.StatusServiceUnavailable, "not ready\n"+strings.Join(problems, "\n"))
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	return mux
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // whoever asked may be gone
}

// Serve answers on the listener until ctx ends, and closes it. What is under way then gets half
// a second to finish.
func (t *Telemetry) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: t.Handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(t.log.Handler(), slog.LevelDebug),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(limited); err != nil {
		_ = server.Close() // what is left is cut
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
