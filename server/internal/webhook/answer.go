package webhook

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

const (
	maxAnswer     = 64 << 10 // bytes of an answer's body, and of its header, that are read
	maxExcerpt    = 1 << 10  // bytes of it that are kept
	maxRetryAfter = 24 * time.Hour
)

// answer is what the receiver said.
type answer struct {
	status     int
	retryAfter string
	excerpt    string
}

// readAnswer reads the body to its end or its limit. A receiver that broke off while it said
// 2xx has not acknowledged; one that refused has, whatever of its words is missing.
func readAnswer(resp *http.Response) (*answer, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	a := &answer{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After"), excerpt: excerpt(body)}
	if err != nil && a.delivered() {
		return nil, fmt.Errorf("the answer %d broke off: %w", a.status, err)
	}
	return a, nil
}

func (a *answer) delivered() bool { return a.status >= 200 && a.status <= 299 }

// verdict is nil only for 2xx.
func (a *answer) verdict(event uuid.UUID, receiver string, now time.Time) error {
	if a.delivered() {
		return nil
	}
	err := fmt.Errorf("post event %s to %s: %w", event, receiver, a.failure())
	switch {
	case a.status == http.StatusRequestTimeout, a.status == http.StatusTooEarly,
		a.status == http.StatusTooManyRequests, a.status >= 500:
		if after := retryAfter(a.retryAfter, now); after > 0 {
			return &outbox.RetryLaterError{Cause: err, After: after}
		}
		if a.status == http.StatusBadGateway || a.status == http.StatusServiceUnavailable || a.status == http.StatusGatewayTimeout {
			return &outbox.AwayError{Cause: err} // whoever is in front of the receiver does not reach it
		}
		return err
	case a.status >= 400:
		return &outbox.RefusedError{Cause: err}
	default:
		return err
	}
}

// failure puts the status in our words: the receiver's own reason phrase may be anything.
func (a *answer) failure() error {
	text := fmt.Sprintf("answered %d %s", a.status, http.StatusText(a.status))
	if a.status >= 300 && a.status <= 399 {
		text += " (redirects are not followed)"
	}
	if a.excerpt != "" {
		text += ": " + a.excerpt
	}
	return errors.New(text)
}

// retryAfter reads both forms of the header (RFC 9110, 10.2.3): seconds, or a date. It is zero
// if there is none, or one that is over or makes no sense.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if date, err := http.ParseTime(value); err == nil {
		return min(max(0, date.Sub(now)), maxRetryAfter)
	}
	seconds, err := strconv.ParseUint(value, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && seconds > uint64(maxRetryAfter/time.Second):
		return maxRetryAfter
	case err != nil:
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// briefError has the start of an error's text. The library repeats a header that it cannot read
// from end to end, which a receiver can make 64 KiB long.
type briefError struct{ cause error }

func (e *briefError) Error() string { return excerpt([]byte(e.cause.Error())) }

func (e *briefError) Unwrap() error { return e.cause }

// excerpt is the start of a body as one line of valid text.
func excerpt(body []byte) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(body), "\uFFFD"))
	text = strings.TrimSpace(text)
	if len(text) <= maxExcerpt {
		return text
	}
	cut := maxExcerpt
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}
