package postgres

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
)

// floorEvery is how many leases a replica grants a worker between two floors of it: so many dead
// ones at most are walked over to count the live ones, for each replica and one for all before.
const floorEvery = 500

// mostGrantCounts is of how many workers grants are counted.
const mostGrantCounts = 100_000

// grantCounts is how many leases workers were granted here since their floors were last moved.
// It only tells when to move one.
type grantCounts struct {
	mu       sync.Mutex
	byWorker map[uuid.UUID]int
}

// add counts grants, and tells whether it is time to move the worker's floor.
func (g *grantCounts) add(worker uuid.UUID, n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byWorker == nil || len(g.byWorker) > mostGrantCounts {
		g.byWorker = map[uuid.UUID]int{}
	}
	g.byWorker[worker] += n
	if g.byWorker[worker] < floorEvery {
		return false
	}
	delete(g.byWorker, worker)
	return true
}

// moveFloors moves the floors of the workers that get leases, where it is time to: up to the
// oldest lease that was counted under the worker's lock, or where none was, to the first version
// that was drawn under it. Both are below all that it will ever get.
func (d *dispatch) moveFloors(ctx context.Context) []call {
	grants := map[uuid.UUID]int{}
	for _, it := range d.granted {
		grants[it.WorkerID]++
	}
	var list []call
	for worker, n := range grants {
		load, first := d.loads[worker], d.versions[0]
		if load.LeasesFrom > first { // versions went back: no floor of before holds for what it gets from now on
			p := dbsqlc.DropFloorsParams{WorkerID: worker, LeaseVersion: first}
			list = append(list, func(q *dbsqlc.Queries) error { return wrap("drop floors", q.DropFloors(ctx, p)) })
			continue
		}
		if !d.t.s.granted.add(worker, n) {
			continue
		}
		p := dbsqlc.PutFloorParams{WorkerID: worker, LeaseVersion: first}
		if load.OldestVersion > 0 {
			p.LeaseVersion = load.OldestVersion
		}
		if p.LeaseVersion > load.LeasesFrom {
			list = append(list, func(q *dbsqlc.Queries) error { return wrap("put floor", q.PutFloor(ctx, p)) })
		}
	}
	return list
}
