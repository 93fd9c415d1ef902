package postgres

import (
	"net"
	"time"
)

// deadPeer is when a connection whose other side does not answer is given up: a database that
// has moved, or a network that drops packets, says nothing.
const deadPeer = 20 * time.Second

// dialer makes connections that notice a silent peer, while they wait and while they send.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout: 5 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 2,
		},
		Control: unacknowledged,
	}
}
