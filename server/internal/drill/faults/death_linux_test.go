package faults

import "syscall"

// dieWithUs has the kernel kill a child when the thread that started it ends.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
