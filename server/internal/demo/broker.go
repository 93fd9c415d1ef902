package demo

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const brokerLimit = 20 * time.Second // for its start

// broker is a NATS server with JetStream, in this process, and a connection to it.
type broker struct {
	server *server.Server
	conn   *nats.Conn
	js     jetstream.JetStream
}

func startBroker(folder string) (*broker, error) {
	running, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: folder,
	})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	b := &broker{server: running}
	running.Start()
	if !running.ReadyForConnections(brokerLimit) {
		b.stop()
		return nil, errors.New("start NATS: it does not get ready")
	}
	if b.conn, err = nats.Connect(running.ClientURL()); err == nil {
		b.js, err = jetstream.New(b.conn)
	}
	if err != nil {
		b.stop()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return b, nil
}

func (b *broker) url() string { return b.server.ClientURL() }

func (b *broker) stop() {
	if b.conn != nil {
		b.conn.Close()
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
}
