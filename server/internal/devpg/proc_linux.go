package devpg

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// endWithParent has the kernel ask the child for a fast shutdown when the thread
// that started it ends: so the starter stays on a thread of its own.
func endWithParent(attr *syscall.SysProcAttr) {
	attr.Pdeathsig = syscall.SIGINT
}

// processesOf lists the processes of PostgreSQL that work in a folder. All of
// them, backends too, have it as their working directory.
func processesOf(pgdata string) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := processIn(pid, pgdata); ok {
			found = append(found, p)
		}
	}
	return found, nil
}

// processIn looks at one process. One that ends meanwhile, or that has ended and
// is not yet reaped, has no working directory and so is none.
func processIn(pid int, pgdata string) (process, bool) {
	base := filepath.Join("/proc", strconv.Itoa(pid))
	cwd, err := os.Readlink(filepath.Join(base, "cwd"))
	if err != nil || strings.TrimSuffix(cwd, " (deleted)") != pgdata {
		return process{}, false
	}
	stat, err := os.ReadFile(filepath.Join(base, "stat"))
	if err != nil {
		return process{}, false
	}
	// "pid (name) state ppid ...": a name may hold spaces and parentheses.
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if open < 0 || end < open || string(stat[open+1:end]) != "postgres" {
		return process{}, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 2 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	command, err := os.ReadFile(filepath.Join(base, "cmdline"))
	if err != nil {
		return process{}, false
	}
	return process{pid: pid, parent: parent, command: strings.ReplaceAll(string(command), "\x00", " ")}, true
}
