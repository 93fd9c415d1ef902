package netfault

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // until the end of either side
			}()
		}
	}()
	return l.Addr().String()
}

// line is a connection through a proxy.
type line struct {
	t    *testing.T
	conn net.Conn
}

func dial(t *testing.T, p *Proxy) *line {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &line{t, conn}
}

// says sends something and tells how its return went, within a time.
func (l *line) says(within time.Duration) error {
	l.t.Helper()
	if _, err := l.conn.Write([]byte("x")); err != nil {
		return err
	}
	return l.hears(within)
}

func (l *line) hears(within time.Duration) error {
	l.t.Helper()
	if err := l.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		l.t.Fatal(err)
	}
	_, err := io.ReadFull(l.conn, make([]byte, 1))
	return err
}

const (
	soon = 20 * time.Second // a limit
	a    = 150 * time.Millisecond
)

// TestProxy_Faults: each does what it says to the connections that it is about, and only while it
// lasts. Broken once: a release that lets nothing go, a loss that forgets its age, a refusal that
// accepts; deafness of all connections.
func TestProxy_Faults(t *testing.T) {
	t.Parallel()
	silent := func(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
	ended := func(err error) bool { return err != nil && !silent(err) }
	for name, check := range map[string]func(t *testing.T, p *Proxy, l *line){
		"late": func(t *testing.T, p *Proxy, l *line) {
			p.AnswerLate(a)
			if began := time.Now(); l.says(soon) != nil || time.Since(began) < a {
				t.Errorf("answered after %s", time.Since(began))
			}
		},
		"held": func(t *testing.T, p *Proxy, l *line) {
			for _, answers := range []bool{true, false} {
				p.Hold(answers)
				if err := l.says(a); !silent(err) {
					t.Errorf("held back: %v", err)
				}
				p.Release()
				if err := l.hears(soon); err != nil {
					t.Errorf("what was held back: %v", err)
				}
			}
		},
		"cut": func(t *testing.T, p *Proxy, l *line) {
			p.Cut()
			if err := l.says(soon); !ended(err) {
				t.Errorf("cut: %v", err)
			}
			if err := dial(t, p).says(soon); err != nil {
				t.Errorf("a new connection: %v", err)
			}
		},
		"lost": func(t *testing.T, p *Proxy, l *line) {
			p.Lose()
			if err := l.says(a); !silent(err) {
				t.Errorf("lost: %v", err)
			}
			if err := dial(t, p).says(soon); err != nil {
				t.Errorf("a new connection: %v", err)
			}
		},
		"refused": func(t *testing.T, p *Proxy, l *line) {
			p.Refuse(true)
			if err := dial(t, p).says(soon); !ended(err) {
				t.Errorf("a new connection: %v", err)
			}
			if err := l.says(soon); err != nil {
				t.Errorf("the old one: %v", err)
			}
			p.Refuse(false)
			if err := dial(t, p).says(soon); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		},
		"deaf": func(t *testing.T, p *Proxy, l *line) {
			p.Mark("x")
			marked, later := dial(t, p), dial(t, p)
			if err := marked.says(soon); err != nil {
				t.Fatal(err)
			}
			p.Deafen()
			if err := marked.says(a); !silent(err) {
				t.Errorf("deaf: %v", err)
			}
			for _, hears := range []*line{l, later, dial(t, p)} {
				if err := hears.says(soon); err != nil {
					t.Errorf("not marked: %v", err)
				}
			}
			if n := p.Unheard(); n != 1 {
				t.Errorf("%d parcels swallowed, want 1", n)
			}
		},
		"swallowed": func(t *testing.T, p *Proxy, l *line) {
			p.Swallow()
			if err := l.says(a); !silent(err) {
				t.Errorf("swallowed: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := New(echo(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			l := dial(t, p)
			if err := l.says(soon); err != nil {
				t.Fatalf("before any fault: %v", err)
			}
			check(t, p, l)
		})
	}
}
