package testsink

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Receiver is an HTTP server that takes webhooks.
type Receiver struct {
	*httptest.Server
	*Record
}

// Answer answers a delivery. It may wait, or end the connection by HangUp; what it answers
// with 2xx, or leaves to be answered so, is noted as taken.
type Answer func(w http.ResponseWriter, req *http.Request, d *Delivery)

// StartReceiver starts one, which ends with the test. Without an answer it takes everything.
func StartReceiver(t testing.TB, answer Answer) *Receiver {
	t.Helper()
	r := &Receiver{Record: &Record{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the relay has gone
		}
		d, err := r.Arrived(body)
		if err != nil {
			t.Errorf("receive: %v", err)
			return
		}
		noted := &noting{ResponseWriter: w, taken: func() { r.Taken(d) }}
		if answer != nil {
			answer(noted, req, d)
		}
		if !noted.answered {
			noted.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// HangUp ends the connection of a call without an answer.
func HangUp() { panic(http.ErrAbortHandler) }

// noting notes an acknowledgement before it is sent.
type noting struct {
	http.ResponseWriter
	taken    func()
	answered bool
}

// WriteHeader sends the status.
func (n *noting) WriteHeader(status int) {
	if !n.answered && status >= 200 && status <= 299 {
		n.taken()
	}
	n.answered = true
	n.ResponseWriter.WriteHeader(status)
}
