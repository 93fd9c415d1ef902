package faults

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// proxy stands between clients and a server: a replica, PostgreSQL, NATS. It passes everything
// on, until it is told to answer late, to hold back, to cut, or to swallow all there is without
// a word.
type proxy struct {
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
	sockets  []net.Conn
	finished bool
	pumps    sync.WaitGroup
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: target, gates: map[bool]chan struct{}{}}
	p.pumps.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.finished = true
		p.mu.Unlock()
		_ = listener.Close() // nothing depends on it
		p.cut()
		p.release()
		p.pumps.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// answerLate delays all that the replica sends.
func (p *proxy) answerLate(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = d
}

// answerUnevenly gives each connection from now on a delay of its own, below d, by chance.
func (p *proxy) answerUnevenly(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spread = d
}

// hold keeps back what comes in a direction, answers or what is asked, until release. Nothing
// is lost, and nobody is told.
func (p *proxy) hold(answers bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gates[answers] == nil {
		p.gates[answers] = make(chan struct{})
	}
}

// release lets both directions go on.
func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for answers, gate := range p.gates {
		close(gate)
		delete(p.gates, answers)
	}
}

// pass waits until a direction is not held back.
func (p *proxy) pass(answers bool) {
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

// swallow loses every packet from now on, in both directions, and tells neither side.
func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// lose makes all connections silent for ever, as a firewall does that forgets them.
func (p *proxy) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.age++
	p.lost = p.age
}

// refuse tells whether new connections are refused from now on.
func (p *proxy) refuse(shut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = shut
}

// cut closes all connections, with a reset.
func (p *proxy) cut() {
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

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = near.Close() // as the target would refuse it
			continue
		}
		p.mu.Lock()
		p.sockets = append(p.sockets, near, far)
		finished, shut, age := p.finished, p.shut, p.age
		own := time.Duration(0)
		if p.spread > 0 {
			own = rand.N(p.spread)
		}
		p.mu.Unlock()
		if finished {
			p.cut()
			return
		}
		if shut {
			_, _ = near.Close(), far.Close() // nobody has used them
			continue
		}
		p.pumps.Go(func() { p.pump(near, far, age, true, own) })
		p.pumps.Go(func() { p.pump(far, near, age, false, 0) })
	}
}

// parcel is what was read at once, and when it is to go on.
type parcel struct {
	data []byte
	due  time.Time
}

// pump passes on what it reads, each parcel with its own delay beside that of the connection.
func (p *proxy) pump(to, from net.Conn, age int, answers bool, own time.Duration) {
	parcels := make(chan parcel, 4096)
	p.pumps.Go(func() {
		for next := range parcels {
			time.Sleep(time.Until(next.due))
			p.pass(answers)
			if !p.isSilent(age) {
				_, _ = to.Write(next.data) // the other pump sees the end
			}
		}
		if !p.isSilent(age) {
			_ = to.Close() // an end is passed on too
		}
	})
	defer close(parcels)
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			parcels <- parcel{data: buffer[:n], due: time.Now().Add(own + p.delay(answers))}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) isSilent(age int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silent || age < p.lost
}

func (p *proxy) delay(answers bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !answers {
		return 0
	}
	return p.late
}
