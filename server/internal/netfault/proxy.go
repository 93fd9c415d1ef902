// Package netfault puts faults into networks on the loopback, for the drill and the tests. It
// imports nothing of ours.
package netfault

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"time"
)

// Proxy stands between clients and a server: a replica, PostgreSQL, NATS. It passes everything
// on, until it is told to answer late, to hold back, to cut, or to swallow all there is without
// a word.
type Proxy struct {
	listener net.Listener
	target   string

	mu       sync.Mutex
	late     time.Duration
	spread   time.Duration
	gates    map[bool]chan struct{} // by direction, answers or not: closed when it is let go
	silent   bool
	shut     bool // new connections are refused
	age      int  // of the connections that are made now
	lost     int  // those of a lower age are silent for ever
	words    []byte
	marked   []*link // on which a client has said the words
	unheard  int     // parcels
	sockets  []net.Conn
	finished bool
	pumps    sync.WaitGroup
}

// link is one connection through the proxy, from a client to the server.
type link struct {
	age  int
	own  time.Duration // delay of all its answers
	deaf bool          // its answers are swallowed
}

// New starts a proxy on a free port of the loopback, for an address or the path of a socket.
// Close ends it.
func New(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p := &Proxy{listener: listener, target: target, gates: map[bool]chan struct{}{}}
	p.pumps.Go(p.accept)
	return p, nil
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.finished = true
	p.mu.Unlock()
	_ = p.listener.Close() // nothing depends on it
	p.Cut()
	p.Release()
	p.pumps.Wait()
}

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// AnswerLate delays all that the replica sends.
func (p *Proxy) AnswerLate(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = d
}

// AnswerUnevenly gives each connection from now on a delay of its own, below d, by chance.
func (p *Proxy) AnswerUnevenly(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spread = d
}

// Hold keeps back what comes in a direction, answers or what is asked, until release. Nothing
// is lost, and nobody is told.
func (p *Proxy) Hold(answers bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gates[answers] == nil {
		p.gates[answers] = make(chan struct{})
	}
}

// Release lets both directions go on.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for answers, gate := range p.gates {
		close(gate)
		delete(p.gates, answers)
	}
}

// pass waits until a direction is not held back.
func (p *Proxy) pass(answers bool) {
	for {
		p.mu.Lock()
		gate := p.gates[answers]
		p.mu.Unlock()
		if gate == nil {
			return
		}
		<-gate
	}
}

// Swallow loses every packet from now on, in both directions, and tells neither side.
func (p *Proxy) Swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// Lose makes all connections silent for ever, as a firewall does that forgets them.
func (p *Proxy) Lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.age++
	p.lost = p.age
}

// Mark says by which words of a client's, sent at once, Deafen knows a connection. They are looked
// for from now on.
func (p *Proxy) Mark(words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.words = []byte(words)
}

// Deafen swallows from now on what the server sends to the marked connections of now. They stay
// open, and what the client says still gets through; so does an end.
func (p *Proxy) Deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.marked {
		l.deaf = true
	}
}

// Unheard is how many parcels Deafen has swallowed.
func (p *Proxy) Unheard() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unheard
}

// Refuse tells whether new connections are refused from now on.
func (p *Proxy) Refuse(shut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = shut
}

// Cut closes all connections, with a reset.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, socket := range p.sockets {
		if tcp, ok := socket.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // it may be closed already
		}
		_ = socket.Close() // as above
	}
	p.sockets = nil
}

func (p *Proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		network := "tcp"
		if filepath.IsAbs(p.target) {
			network = "unix"
		}
		far, err := net.Dial(network, p.target)
		if err != nil {
			_ = near.Close() // as the target would refuse it
			continue
		}
		p.mu.Lock()
		p.sockets = append(p.sockets, near, far)
		finished, shut, l := p.finished, p.shut, &link{age: p.age}
		if p.spread > 0 {
			l.own = rand.N(p.spread)
		}
		p.mu.Unlock()
		if finished {
			p.Cut()
			return
		}
		if shut {
			_, _ = near.Close(), far.Close() // nobody has used them
			continue
		}
		p.pumps.Go(func() { p.pump(near, far, l, true) })
		p.pumps.Go(func() { p.pump(far, near, l, false) })
	}
}

// parcel is what was read at once, and when it is to go on.
type parcel struct {
	data []byte
	due  time.Time
}

// pump passes on what it reads, each parcel with its own delay beside that of the connection.
func (p *Proxy) pump(to, from net.Conn, l *link, answers bool) {
	parcels := make(chan parcel, 4096)
	p.pumps.Go(func() {
		for next := range parcels {
			time.Sleep(time.Until(next.due))
			p.pass(answers)
			if p.getsThrough(l, answers, next.data) {
				_, _ = to.Write(next.data) // the other pump sees the end
			}
		}
		if !p.isSilent(l) {
			_ = to.Close() // an end is passed on too
		}
	})
	defer close(parcels)
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			parcels <- parcel{data: buffer[:n], due: time.Now().Add(p.delay(l, answers))}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) isSilent(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silent || l.age < p.lost
}

// getsThrough decides about a parcel, and looks for the words in what a client says.
func (p *Proxy) getsThrough(l *link, answers bool, data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.silent || l.age < p.lost:
		return false
	case answers && l.deaf:
		p.unheard++
		return false
	case !answers && len(p.words) > 0 && bytes.Contains(data, p.words):
		p.marked = append(p.marked, l)
	}
	return true
}

func (p *Proxy) delay(l *link, answers bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !answers {
		return 0
	}
	return l.own + p.late
}
