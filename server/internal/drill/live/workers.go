package live

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/leasehold/leasehold/server/internal/subprocess"
)

// workerProcess is a process with a worker of the SDK.
type workerProcess struct {
	*subprocess.Process
	load    *load
	name    string
	holding chan string // the step that a sleepwalker holds
	reading sync.WaitGroup

	mu      sync.Mutex
	reports []span // that were accepted
}

// hire starts a worker, which finds the replicas at these addresses.
func (l *load) hire(addresses []string, further ...string) (*workerProcess, error) {
	l.hired++
	w := &workerProcess{load: l, name: fmt.Sprintf("worker-%d", l.hired), holding: make(chan string, 1)}
	file := filepath.Join(l.x.folder, l.x.namespace+"-"+w.name+".history")
	args := append([]string{
		"drill-worker", "--name=" + w.name, "--namespace=" + l.x.namespace, "--replicas=" + strings.Join(addresses, ","),
		"--history=" + file, fmt.Sprintf("--slots=%d", l.cfg.slots), "--pace=" + l.cfg.pace.String(), "--log-level=error",
	}, further...)
	var err error
	if w.Process, err = subprocess.Start(subprocess.Config{
		Program: l.x.cfg.Program, Folder: l.x.folder, Name: l.x.namespace + "-" + w.name, Args: args,
	}); err != nil {
		return nil, err
	}
	w.reading.Go(w.read)
	l.workers, l.histories = append(l.workers, w), append(l.histories, file)
	return w, nil
}

// read takes what the worker says, until its end.
func (w *workerProcess) read() {
	for {
		text, err := w.Line(context.Background())
		if err != nil {
			return
		}
		word, rest, _ := strings.Cut(text, " ")
		switch word {
		case wordHolding:
			w.holding <- rest // It says so once.
		case wordReported:
			var s span
			if _, err := fmt.Sscan(rest, &s.sent, &s.got); err == nil {
				w.mu.Lock()
				w.reports = latest(append(w.reports, s))
				w.mu.Unlock()
			}
		}
	}
}

// reportAfter is the first report that was sent after an instant and accepted.
func (w *workerProcess) reportAfter(instant int64) (span, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return firstAfter(w.reports, instant)
}

// awaitHeld waits until the worker holds something.
func (w *workerProcess) awaitHeld(ctx context.Context) error {
	return w.load.x.await(ctx, goOnLimit, w.name+" holds something", some,
		`SELECT count(*) FROM leases l JOIN workers w ON w.id = l.worker_id WHERE w.namespace = $1 AND w.name = $2`, w.load.x.namespace, w.name)
}

// awaitTaken waits until all that the worker holds now is finished. It says how long that took, and how
// much of it others have finished: a report of the worker's own may have been on its way.
func (w *workerProcess) awaitTaken(ctx context.Context) (took time.Duration, taken int64, err error) {
	began := time.Now() // monotonic
	var steps []string
	err = w.load.x.db.QueryRow(ctx, `SELECT array_agg(l.step_id::text) FROM leases l JOIN workers w ON w.id = l.worker_id
		WHERE w.namespace = $1 AND w.name = $2`, w.load.x.namespace, w.name).Scan(&steps)
	if err != nil {
		return 0, 0, fmt.Errorf("look at the leases of %s: %w", w.name, err)
	}
	err = w.load.x.await(ctx, takeOverLimit, "finished by others what "+w.name+" held", none,
		`SELECT count(*) FROM steps WHERE id = ANY ($1::uuid[]) AND state <> 'SUCCEEDED'`, steps)
	took = time.Since(began)
	if err != nil {
		return took, 0, err
	}
	taken, err = w.load.x.number(ctx, `SELECT count(*) FROM attempts a JOIN workers w ON w.id = a.worker_id
		WHERE a.step_id = ANY ($1::uuid[]) AND a.state = 'SUCCEEDED' AND w.name <> $2`, steps, w.name)
	return took, taken, err
}
