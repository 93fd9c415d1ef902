package postgres_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// proxy stands between a store and PostgreSQL, and cuts one connection at a COMMIT.
type proxy struct {
	t      *testing.T
	server string
	ln     net.Listener

	mu    sync.Mutex
	cut   cutting
	after func() // called when the connection was cut, before the store hears of it
	cuts  int
}

// cutting is what of the next COMMIT is lost.
type cutting int

const (
	cutNothing cutting = iota
	cutRequest         // PostgreSQL never sees it
	cutAnswer          // it is committed, and the store does not hear of it
	cutBehind          // PostgreSQL has it, and the store is cut off before it is committed
)

func newProxy(t *testing.T, url string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, server: "127.0.0.1:" + portOf(t, url), ln: ln}
	t.Cleanup(func() { _ = ln.Close() })
	go p.accept()
	return p
}

// url leads through the proxy.
func (p *proxy) url(url string) string {
	_, port, _ := net.SplitHostPort(p.ln.Addr().String())
	return strings.Replace(url, p.server, "127.0.0.1:"+port, 1)
}

// arm cuts the next COMMIT.
func (p *proxy) arm(c cutting, after func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.after = c, after
}

func (p *proxy) done() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// take takes the cut for one connection.
func (p *proxy) take() (c cutting, after func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, after = p.cut, p.after
	if c != cutNothing {
		p.cut, p.after = cutNothing, nil
		p.cuts++
	}
	return c, after
}

func (p *proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{p: p, client: client, server: server, lost: make(chan struct{}), over: make(chan struct{}), commits: map[string]bool{}}
		go l.forward()
		go l.back()
	}
}

// link is one connection through the proxy.
type link struct {
	p              *proxy
	client, server net.Conn
	lost           chan struct{} // closed when the answer to a COMMIT is to be lost
	over           chan struct{} // closed when PostgreSQL has answered for the last time
	after          func()
	commits        map[string]bool // names of prepared statements that are COMMITs
}

// isCommit tells a COMMIT, sent alone or among other statements.
func (l *link) isCommit(message []byte) bool {
	body := message[5:]
	word := func() string {
		w, rest, _ := bytes.Cut(body, []byte{0})
		body = rest
		return strings.ToLower(string(w))
	}
	switch message[0] {
	case 'Q':
		return word() == "commit"
	case 'P': // Parse: its name, then what it stands for
		name := word()
		l.commits[name] = word() == "commit"
	case 'B': // Bind: a portal, then the statement
		word()
		return l.commits[word()]
	}
	return false
}

// isCancel tells a driver's wish to end what another session does. None gets through: PostgreSQL
// does not listen to it either while it writes a commit.
func isCancel(message []byte) bool {
	const code = 80877102
	return len(message) == 16 && binary.BigEndian.Uint32(message[4:]) == code
}

func (l *link) close() { _ = l.client.Close(); _ = l.server.Close() }

// forward passes the client's messages on; the first one has no type.
func (l *link) forward() {
	defer l.close()
	in := bufio.NewReader(l.client)
	behind := false
	for first := true; ; first = false {
		message, err := readMessage(in, !first)
		if err != nil {
			return
		}
		if first && isCancel(message) {
			return
		}
		if !first && l.isCommit(message) {
			switch c, after := l.p.take(); c {
			case cutRequest:
				_ = l.server.Close() // rolled back before the client hears of it
				if after != nil {
					after()
				}
				return
			case cutAnswer:
				l.after = after
				close(l.lost)
			case cutBehind:
				l.after, behind = after, true
			}
		}
		if _, err := l.server.Write(message); err != nil {
			return
		}
		if behind && (message[0] == 'Q' || message[0] == 'S') {
			close(l.lost)
			_ = l.client.Close()
			<-l.over
			return
		}
		if l.isLost() && (message[0] == 'Q' || message[0] == 'S') { // PostgreSQL has all of it
			_, _ = io.Copy(io.Discard, in) // until back() has seen the answer and closes
			return
		}
	}
}

func (l *link) isLost() bool {
	select {
	case <-l.lost:
		return true
	default:
		return false
	}
}

// back passes the server's messages on, until the answer to a COMMIT is to be lost.
func (l *link) back() {
	defer close(l.over)
	defer l.close()
	out := bufio.NewReader(l.server)
	for {
		message, err := readMessage(out, true)
		if err != nil {
			return
		}
		if l.isLost() {
			if message[0] != 'Z' { // until the server is done with it
				continue
			}
			if l.after != nil {
				l.after()
			}
			return
		}
		if _, err := l.client.Write(message); err != nil {
			return
		}
	}
}

// readMessage reads one message of PostgreSQL's protocol.
func readMessage(r *bufio.Reader, typed bool) ([]byte, error) {
	head := 4
	if typed {
		head = 5
	}
	message := make([]byte, head)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(message[head-4:])) - 4
	message = append(message, make([]byte, size)...)
	_, err := io.ReadFull(r, message[head:])
	return message, err
}

// cutOnce runs a call whose COMMIT is cut, and checks that it was.
func (p *proxy) cutOnce(c cutting, after func(), call func() error) {
	p.t.Helper()
	before := p.done()
	p.arm(c, after)
	began := time.Now()
	if err := call(); err != nil {
		p.t.Fatalf("after a lost commit: %v", err)
	}
	if n := p.done() - before; n != 1 {
		p.t.Fatalf("%d commits were cut in %v, want 1", n, time.Since(began))
	}
}

func portOf(t *testing.T, url string) string {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(c.Port)
}
