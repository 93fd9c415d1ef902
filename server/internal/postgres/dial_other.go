//go:build !linux

package postgres

import "syscall"

// unacknowledged leaves it to the keepalives: there is no such option here.
func unacknowledged(string, string, syscall.RawConn) error { return nil }
