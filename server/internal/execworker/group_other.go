//go:build !linux

package execworker

import "syscall"

// endWithParent does nothing: there is no such signal here.
func endWithParent(*syscall.SysProcAttr) {}
