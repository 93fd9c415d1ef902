//go:build !linux

package faults

import "syscall"

// dieWithUs does nothing: there is no parent-death signal here.
func dieWithUs(*syscall.SysProcAttr) {}
