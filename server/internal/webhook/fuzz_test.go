package webhook

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

// fuzzTimeout bounds a Publish: a receiver that falls silent costs an input so long.
const fuzzTimeout = 300 * time.Millisecond

// How an input's receiver goes on after its bytes, by the lowest bits of its first byte.
const (
	thenClose   = iota // says that it is done
	thenReset          // the connection breaks
	thenWait           // says nothing more
	thenGarbage        // says more, for the next request to find
	endings
)

const moreGarbage = "\r\n\x00\xffHTTP/1.1 200 OK\r\n\r\n"

// FuzzAnswer has a receiver that answers with any bytes, cut anywhere, and then closes, breaks off
// or falls silent. An event counts as delivered exactly when the bytes are a whole answer of 2xx,
// as the standard library reads it on its own; everything else is an error of the right kind, whose
// text can be stored, in time.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
		"HTTP/1.0 202 \r\n\r\nuntil the end", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 503 Busy\r\nRetry-After: 120\r\nContent-Length: 4\r\n\r\nbusy", "HTTP/1.1 429 No\r\nRetry-After: 99999999999999999999\r\n\r\n",
		"HTTP/1.1 429 No\r\nRetry-After: Mon, 30 Nov 2099 12:00:00 GMT\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 500 No\r\nRetry-After: -1\r\n\r\n",
		"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 400 Bad\r\nContent-Length: 4\r\n\r\na\x00\xff\n",
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "HTTP/1.1 409 Conflict\r\nContent-Length: 99\r\n\r\ncut",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 999 What\r\n\r\n", "HTTP/1.1 000 What\r\n\r\n", "garbage\r\n\r\n", "",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 70<<10) + "\r\n\r\n", "HTTP/1.1 400 No\r\n\r\n" + strings.Repeat("ä\x01", 2000),
	} {
		for ending := range endings {
			f.Add([]byte(string(rune(ending)) + text))
		}
	}
	r := newRawReceiver(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		ending := 0
		if len(data) > 0 {
			ending, data = int(data[0])%endings, data[1:]
		}
		r.say(ending, data)
		p := publisher(t, Config{URL: r.url, Timeout: fuzzTimeout})
		begun := time.Now() // monotonic
		err := p.Publish(t.Context(), newEvent())
		took := time.Since(begun)
		if took > fuzzTimeout+5*time.Second {
			t.Errorf("took %s", took)
		}
		if n := r.requests.Load(); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
		judgeAnswer(t, data, ending, err)
	})
}

// judgeAnswer compares what became of an event with what the bytes say.
func judgeAnswer(t *testing.T, data []byte, ending int, err error) {
	t.Helper()
	if ending == thenGarbage {
		data = append(bytes.Clone(data), moreGarbage...)
	}
	status, whole := readAsBytes(data, ending)
	// The machine may be slow, and a header of more than is read is no answer.
	slow := errors.Is(err, context.DeadlineExceeded) || len(data) > maxAnswer
	delivered := whole && status >= 200 && status <= 299
	if err == nil {
		if !delivered {
			t.Errorf("delivered with status %d, whole %t, ending %d", status, whole, ending)
		}
		return
	}
	if delivered && !slow && ending != thenReset {
		t.Errorf("status %d is not delivered: %v", status, err)
	}
	text := err.Error()
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) || len(text) > 4*maxExcerpt {
		t.Errorf("%d bytes of text: %.300q", len(text), text)
	}
	var later *outbox.RetryLaterError
	if errors.As(err, &later) && (later.After <= 0 || later.After > maxRetryAfter) {
		t.Errorf("again after %s", later.After)
	}
	var no *outbox.RefusedError
	isNo := status >= 400 && status <= 499 && status != 408 && status != 425 && status != 429
	if errors.As(err, &no) && !isNo || isNo && whole && !slow && ending != thenReset && !errors.As(err, &no) {
		t.Errorf("status %d: %v", status, err)
	}
}

// readAsBytes reads an answer without a connection: its final status, 0 for none, and whether all
// of it is there. What is longer than is read counts as there.
func readAsBytes(data []byte, ending int) (status int, whole bool) {
	b := bufio.NewReader(bytes.NewReader(data))
	for informational := 0; ; informational++ {
		resp, err := http.ReadResponse(b, &http.Request{Method: http.MethodPost})
		if err != nil || informational > 5 {
			return 0, false
		}
		if resp.StatusCode >= 100 && resp.StatusCode <= 199 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		_ = resp.Body.Close()
		untilEnd := resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && n < maxAnswer
		return resp.StatusCode, err == nil && (!untilEnd || ending != thenWait)
	}
}

// rawReceiver speaks no HTTP: it reads a request's head, and says what it was told to.
type rawReceiver struct {
	url      string
	listener net.Listener
	answer   atomic.Pointer[rawAnswer]
	requests atomic.Int64
}

type rawAnswer struct {
	ending int
	data   []byte
}

func newRawReceiver(f *testing.F) *rawReceiver {
	f.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	r := &rawReceiver{url: fmt.Sprintf("http://%s/hook", listener.Addr()), listener: listener}
	r.say(thenClose, nil)
	done := make(chan struct{})
	go func() { defer close(done); r.serve() }()
	f.Cleanup(func() { _ = listener.Close(); <-done })
	return r
}

func (r *rawReceiver) say(ending int, data []byte) {
	r.answer.Store(&rawAnswer{ending, data})
	r.requests.Store(0)
}

func (r *rawReceiver) serve() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.talk(conn.(*net.TCPConn))
	}
}

// talk answers one request; one is all that an input makes.
func (r *rawReceiver) talk(conn *net.TCPConn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * fuzzTimeout)) // of the socket
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, req.Body)
	r.requests.Add(1)
	a := r.answer.Load()
	_, _ = conn.Write(a.data)
	switch a.ending {
	case thenReset:
		_ = conn.SetLinger(0)
	case thenWait:
		_, _ = io.Copy(io.Discard, conn) // until the publisher has had enough
	case thenGarbage:
		_, _ = conn.Write([]byte(moreGarbage))
	}
}
