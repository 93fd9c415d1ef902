package execworker

import "syscall"

// endWithParent has the kernel kill the program when the thread that started it ends.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
