package subprocess

import "syscall"

// endWithParent has the kernel kill the child, even a frozen one, when its parent is gone.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
