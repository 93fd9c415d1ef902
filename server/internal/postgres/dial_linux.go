package postgres

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unacknowledged ends a connection whose sent bytes are not acknowledged in time.
func unacknowledged(network, _ string, c syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadPeer.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
