//go:build !linux

package demo

import "syscall"

// endWithParent does nothing: there is no parent-death signal here.
func endWithParent(*syscall.SysProcAttr) {}
