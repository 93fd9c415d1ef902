//go:build !linux

package devpg

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// endWithParent does nothing: there is no parent-death signal here. The next
// start on the folder ends what we left.
func endWithParent(*syscall.SysProcAttr) {}

// processesOf lists the processes of PostgreSQL that work in a folder: a
// postmaster by its arguments, a backend by its title, which begins with the
// cluster's name that we gave it.
func processesOf(pgdata string) ([]process, error) {
	out, err := exec.Command("ps", "-axww", "-o", "pid=,ppid=,stat=,command=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[2], "Z") {
			continue
		}
		pid, err1 := strconv.Atoi(fields[0])
		parent, err2 := strconv.Atoi(fields[1])
		command := strings.Join(fields[3:], " ")
		server := strings.Contains(fields[3], "postgres") && strings.Contains(command+" ", " -D "+pgdata+" ")
		backend := strings.HasPrefix(command, "postgres: "+clusterName(pgdata))
		if err1 == nil && err2 == nil && (server || backend) {
			found = append(found, process{pid: pid, parent: parent, command: command})
		}
	}
	return found, nil
}
