//go:build !linux

package subprocess

import "syscall"

// endWithParent does nothing: there is no parent-death signal here.
func endWithParent(*syscall.SysProcAttr) {}
