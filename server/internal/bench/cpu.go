package bench

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/procfs"
)

const ticks = 100 // in a second, as /proc counts for programs on all Linux systems

// processorTime is in seconds. On systems without /proc that of others is 0.
type processorTime struct{ servers, postgres, load float64 }

func (p processorTime) since(earlier processorTime) processorTime {
	return processorTime{p.servers - earlier.servers, p.postgres - earlier.postgres, p.load - earlier.load}
}

// processorTime is what was used until now, by live servers.
func (s *site) processorTime() processorTime {
	used := processorTime{load: ownTime()}
	for _, r := range s.replicas {
		if p, err := procfs.NewProc(r.process.PID()); err == nil {
			used.servers += timeOf(p)
		}
	}
	if s.postmaster != 0 {
		used.postgres = familyTime(s.postmaster)
	}
	return used
}

func timeOf(p procfs.Proc) float64 {
	stat, err := p.Stat()
	if err != nil {
		return 0
	}
	return stat.CPUTime()
}

// familyTime is that of a process and of its children, ended ones too.
func familyTime(pid int) (used float64) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0
	}
	for _, p := range all {
		stat, err := p.Stat()
		switch {
		case err != nil: // It has just ended.
		case p.PID == pid:
			used += stat.CPUTime() + float64(stat.CUTime+stat.CSTime)/ticks
		case stat.PPID == pid:
			used += stat.CPUTime()
		}
	}
	return used
}

// ownTime is that of this process.
func ownTime() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return (time.Duration(used.Utime.Nano()) + time.Duration(used.Stime.Nano())).Seconds()
}

// findPostmaster is the process id of a PostgreSQL that runs on this machine; 0: it does not, or
// cannot be looked at.
func findPostmaster(ctx context.Context, conn *pgx.Conn) (int, error) {
	host := conn.Config().Host
	if ip := net.ParseIP(host); host != "localhost" && !strings.HasPrefix(host, "/") && !ip.IsLoopback() {
		return 0, nil
	}
	var backend int
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&backend); err != nil {
		return 0, fmt.Errorf("ask for PostgreSQL's process: %w", err)
	}
	p, err := procfs.NewProc(backend)
	if err != nil {
		return 0, nil
	}
	// It may be a number in another container.
	if stat, err := p.Stat(); err == nil && stat.Comm == "postgres" {
		return stat.PPID, nil
	}
	return 0, nil
}
