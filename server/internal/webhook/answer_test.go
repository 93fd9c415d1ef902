package webhook

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

func countNew(opened *atomic.Int64) func(net.Conn, http.ConnState) {
	return func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
}

// TestPublish_EveryStatus: what each class of answers means, with and without Retry-After.
func TestPublish_EveryStatus(t *testing.T) {
	t.Parallel()
	var code atomic.Int64
	var wait atomic.Bool
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		if wait.Load() {
			w.Header().Set("Retry-After", "30")
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(int(code.Load()))
	})
	p := publisher(t, Config{URL: r.URL})
	for status := 200; status <= 599; status++ {
		plain, asked := again, again
		switch {
		case status <= 299:
			plain, asked = delivered, delivered
		case status == 502, status == 503, status == 504:
			plain, asked = away, later
		case status == 408, status == 425, status == 429, status >= 500:
			asked = later
		case status >= 400:
			plain, asked = refused, refused
		}
		code.Store(int64(status))
		for _, w := range []struct {
			wait bool
			want kind
		}{{false, plain}, {true, asked}} {
			wait.Store(w.wait)
			err := p.Publish(t.Context(), newEvent())
			if got := kindOf(err); got != w.want {
				t.Errorf("%d, Retry-After %t: %s (%v), want %s", status, w.wait, got, err, w.want)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprint("answered ", status)) {
				t.Errorf("%d: the error does not say it: %v", status, err)
			}
		}
	}
	for _, c := range r.seen() {
		if c.path != "/" {
			t.Fatalf("followed a redirect to %s", c.path)
		}
	}
	if n := len(r.seen()); n != 800 {
		t.Errorf("%d calls, want 800", n)
	}
}

func TestPublish_SwitchingProtocolsIsNotDelivered(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
		_ = conn.Close()
	})
	if err := publisher(t, Config{URL: r.URL}).Publish(t.Context(), newEvent()); kindOf(err) != again {
		t.Errorf("got %v", err)
	}
}

func TestPublish_RetryAfterReachesTheRelay(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat))
		http.Error(w, "too busy", http.StatusServiceUnavailable)
	})
	err := publisher(t, Config{URL: r.URL}).Publish(t.Context(), newEvent())
	var wait *outbox.RetryLaterError
	if !errors.As(err, &wait) || wait.After < 9*time.Minute || wait.After > 10*time.Minute {
		t.Fatalf("got %v, want about 10m", err)
	}
	if !strings.Contains(err.Error(), "too busy") {
		t.Errorf("the receiver's words are missing: %v", err)
	}
}

func TestRetryAfter_Forms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                               0,
		"0":                              0,
		"1":                              time.Second,
		" 120 ":                          2 * time.Minute,
		"86400":                          24 * time.Hour,
		"86401":                          24 * time.Hour,
		"99999999999999999999999":        24 * time.Hour,
		"9223372037":                     24 * time.Hour, // overflows in nanoseconds
		"-5":                             0,
		"1.5":                            0,
		"soon":                           0,
		"Mon, 30 Nov 2026 12:00:30 GMT":  30 * time.Second,
		"Monday, 30-Nov-26 12:01:00 GMT": time.Minute,
		"Mon Nov 30 12:02:00 2026":       2 * time.Minute,
		"Mon, 30 Nov 2026 11:00:00 GMT":  0,
		"Mon, 30 Nov 2099 12:00:00 GMT":  24 * time.Hour,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: got %s, want %s", value, got, want)
		}
	}
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, want string }{
		"empty":      {"", ""},
		"plain":      {"no such tenant\n", "no such tenant"},
		"NUL, lines": {"a\x00b\r\nc", "a b  c"},
		"not UTF-8":  {"caf\xe9", "caf\uFFFD"},
		"a rune":     {strings.Repeat("x", maxExcerpt-1) + "é", strings.Repeat("x", maxExcerpt-1)},
		"long":       {strings.Repeat("é", maxExcerpt), strings.Repeat("é", maxExcerpt/2)},
	} {
		if got := excerpt([]byte(c.body)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestPublish_ReadsLittleOfALongAnswer: an endless answer neither fills the memory nor hides
// that it is an acknowledgement.
func TestPublish_ReadsLittleOfALongAnswer(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusOK, http.StatusConflict} {
		r := newReceiver(t, func(w http.ResponseWriter, req *http.Request) {
			w.WriteHeader(code)
			for req.Context().Err() == nil {
				if _, err := w.Write([]byte(strings.Repeat("ä\x00", 1000))); err != nil {
					return
				}
			}
		})
		err := publisher(t, Config{URL: r.URL}).Publish(t.Context(), newEvent())
		if code == http.StatusOK {
			if err != nil {
				t.Errorf("200: %v", err)
			}
			continue
		}
		text := fmt.Sprint(err)
		if kindOf(err) != refused || len(text) > maxExcerpt+300 || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			t.Errorf("409: %d bytes: %.100q", len(text), text)
		}
	}
}
