package devpg

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"syscall"
	"time"
)

const (
	// orphanGrace is how long a postmaster that lost its owner may take for a
	// fast shutdown, orphanLimit when we give up on it altogether.
	orphanGrace = 15 * time.Second
	orphanLimit = 30 * time.Second
	pollEvery   = 10 * time.Millisecond
)

// process is one process of PostgreSQL that works in a data folder.
type process struct {
	pid, parent int
	command     string
}

// clusterName marks a server as ours. It is given on the command line, so that
// it shows in the list of processes, and PostgreSQL puts it into the titles of
// all the server's processes.
func clusterName(pgdata string) string {
	return fmt.Sprintf("leasehold-%x", sha256.Sum256([]byte(pgdata)))[:22]
}

func clusterArg(pgdata string) string { return "cluster_name=" + clusterName(pgdata) }

func (p process) isBackend() bool { return strings.HasPrefix(p.command, "postgres: ") }

// endOrphans ends what is left on a folder of a server whose owner, or whose
// postmaster, is gone, and waits until none of its processes lives. Only the
// holder of the folder's lock may call it, with no server of its own running.
func endOrphans(ctx context.Context, dataDir, pgdata string) error {
	start := time.Now()
	asked := map[int]bool{}
	for {
		left, err := processesOf(pgdata)
		if err != nil || len(left) == 0 {
			return err
		}
		if p, found := foreign(left, pgdata); found {
			return &ForeignServerError{DataDir: dataDir, PID: p.pid}
		}
		age := time.Since(start)
		if age > orphanLimit {
			return fmt.Errorf("process %d of an earlier PostgreSQL on %s does not end", left[0].pid, dataDir)
		}
		endAll(left, asked, age > orphanGrace)
		if err := sleep(ctx, pollEvery); err != nil {
			return fmt.Errorf("wait for the end of an earlier PostgreSQL on %s: %w", dataDir, err)
		}
	}
}

// foreign returns a postmaster that lacks our mark. A process without arguments
// is one that is just ending.
func foreign(all []process, pgdata string) (process, bool) {
	for _, p := range all {
		if p.command != "" && !p.isBackend() && !strings.Contains(p.command, clusterArg(pgdata)) {
			return p, true
		}
	}
	return process{}, false
}

// endAll asks each postmaster once for a fast shutdown, and kills backends that
// have lost theirs: they would end by themselves, but only between two waits.
func endAll(all []process, asked map[int]bool, force bool) {
	alive := map[int]bool{}
	for _, p := range all {
		alive[p.pid] = true
	}
	for _, p := range all {
		switch {
		case force, p.isBackend() && !alive[p.parent]:
			_ = syscall.Kill(p.pid, syscall.SIGKILL) // It may have ended meanwhile.
		case !p.isBackend() && !asked[p.pid]:
			asked[p.pid] = true
			_ = syscall.Kill(p.pid, syscall.SIGINT)
		}
	}
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
