// Package broker is a NATS server with JetStream in this process, for commands that show how
// events reach other systems. It imports nothing of ours.
package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const startLimit = 20 * time.Second // for its start

// Broker is the server, and a connection to it.
type Broker struct {
	JetStream jetstream.JetStream

	server *server.Server
	conn   *nats.Conn
}

// Start starts one on a free port of the loopback, which keeps its streams in a folder.
func Start(folder string) (*Broker, error) {
	running, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: folder,
	})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	b := &Broker{server: running}
	running.Start()
	if !running.ReadyForConnections(startLimit) {
		b.Stop()
		return nil, errors.New("start NATS: it does not get ready")
	}
	if b.conn, err = nats.Connect(running.ClientURL()); err == nil {
		b.JetStream, err = jetstream.New(b.conn)
	}
	if err != nil {
		b.Stop()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return b, nil
}

// URL is for clients.
func (b *Broker) URL() string { return b.server.ClientURL() }

// Addr is its host and port.
func (b *Broker) Addr() string { return b.server.Addr().String() }

// Stop ends the server.
func (b *Broker) Stop() {
	if b.conn != nil {
		b.conn.Close()
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
}
