package memstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// waiting is a scheduling request with what its step says of it.
type waiting struct {
	request
	task.Need
	priority int
}

// group is the group of polls that can serve it.
func (w waiting) group() scheduler.Group { return scheduler.Group(w.Need) }

// free tells whether no other claim than this one is on it.
func (w waiting) free(now time.Time, claim uuid.UUID) bool {
	return !w.claims.After(now) || w.claim == claim
}

// waitingFor lists what of some groups waits and is not paused, the most urgent first.
func waitingFor[V any](t *txn, groups map[scheduler.Group]V) []waiting {
	var list []waiting
	for _, r := range t.requests {
		s := t.steps[r.StepID]
		w := waiting{request: r, priority: s.Priority}
		w.Need = task.Need{Namespace: t.executions[s.execution].Namespace, Capability: s.Capability, Node: s.Node}
		if _, asked := groups[w.group()]; asked && !t.paused(w.Namespace, w.Capability) {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b waiting) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), a.Due.Compare(b.Due), byID(a.StepID, b.StepID))
	})
	return list
}

func (t *txn) paused(namespace, name string) bool {
	return t.capabilities[scheduler.CapabilityKey{Namespace: namespace, Name: name}].pause != nil
}

// NextDue is how long until something is due, of each of the groups of which something waits.
// What is claimed is due when its claim ends.
func (s *Store) NextDue(_ context.Context, groups []scheduler.Group) ([]scheduler.DueGroup, error) {
	var due []scheduler.DueGroup
	s.read(func(t *txn) {
		wanted := map[scheduler.Group]bool{}
		for _, g := range groups {
			wanted[g] = true
		}
		next := map[scheduler.Group]time.Duration{}
		for _, w := range waitingFor(t, wanted) {
			in := max(w.Due.Sub(t.at), w.claims.Sub(t.at))
			if before, there := next[w.group()]; !there || in < before {
				next[w.group()] = in
			}
		}
		for _, g := range groups {
			if in, there := next[g]; there {
				due = append(due, scheduler.DueGroup{Group: g, In: in})
				delete(next, g)
			}
		}
	})
	return due, nil
}

// Claim counts the workers' free slots, then claims what their polls can take.
func (s *Store) Claim(ctx context.Context, c scheduler.ClaimCommand) (scheduler.Claimed, error) {
	claimed := scheduler.Claimed{Free: map[uuid.UUID]int{}}
	err := s.tx(ctx, "claim", func(t *txn) error {
		for i := range c.Offers {
			if w, known := t.workers[c.Offers[i].WorkerID]; known {
				claimed.Free[w.id] = t.standing(w).Free()
			}
		}
		rooms, total := c.Rooms(claimed.Free)
		type level struct {
			scheduler.Group
			priority int
		}
		taken := map[level]int{}
		for _, w := range waitingFor(t, rooms) {
			l := level{w.group(), w.priority}
			if len(claimed.Requests) == min(total, c.Limit) {
				break
			}
			if w.Due.After(t.at) || !w.free(t.at, c.ClaimID) || taken[l] == rooms[w.group()] {
				continue
			}
			taken[l]++
			w.claim, w.claims = c.ClaimID, t.at.Add(c.Expires)
			put(t, t.requests, requestKey{w.StepID, w.Number}, w.request)
			claimed.Requests = append(claimed.Requests, task.Waiting{
				StepID: w.StepID, Number: w.Number, ExecutionID: t.steps[w.StepID].execution, Namespace: w.Namespace, Capability: w.Capability, Node: w.Node, AnswerBytes: w.AnswerBytes,
			})
		}
		return nil
	})
	if err != nil {
		return scheduler.Claimed{}, err
	}
	return claimed, nil
}

// standing is how a worker stands, for whichever session asks.
func (t *txn) standing(w worker) task.Standing {
	return task.Standing{Present: w.session != uuid.Nil, Drained: t.drained(w), Slots: w.Slots, Live: t.countLeases(w.id)}
}

func (t *txn) countLeases(worker uuid.UUID) (n int) {
	for _, l := range t.leases {
		if l.worker == worker {
			n++
		}
	}
	return n
}

// Free gives claimed requests back.
func (s *Store) Free(ctx context.Context, claim uuid.UUID, steps []uuid.UUID) error {
	return s.tx(ctx, "free claims", func(t *txn) error {
		for k, r := range t.requests {
			if r.claim == claim && slices.Contains(steps, k.step) {
				put(t, t.requests, k, request{Request: r.Request})
			}
		}
		return nil
	})
}

// Dispatch makes attempts and leases of the assignments whose every condition holds.
func (s *Store) Dispatch(ctx context.Context, c scheduler.DispatchCommand) (scheduler.Dispatched, error) {
	d := &dispatch{claim: c.ClaimID, done: scheduler.Dispatched{Granted: map[uuid.UUID]bool{}}}
	err := s.tx(ctx, "dispatch", func(t *txn) error {
		d.txn = t
		for _, it := range c.Items {
			if err := d.decide(it); err != nil {
				return fmt.Errorf("lease step %s: %w", it.StepID, err)
			}
		}
		for _, a := range d.asked {
			put(t, t.answered, a, t.at)
		}
		return nil
	})
	if err != nil {
		return scheduler.Dispatched{}, err
	}
	return d.done, nil
}

// dispatch is one dispatch.
type dispatch struct {
	*txn
	claim uuid.UUID
	done  scheduler.Dispatched
	asked []answer // request ids that it answers
}

// decide looks at one assignment: it is granted, or its request is dropped since nothing needs
// it, or it is left.
func (d *dispatch) decide(it scheduler.DispatchItem) error {
	k := requestKey{it.StepID, it.Number}
	s := d.steps[it.StepID]
	if it.Number <= len(s.attempts) { // the attempt exists
		made := s.attempts[it.Number-1]
		if l, live := d.leases[made]; live && l.claim == d.claim && made == it.AttemptID {
			d.done.Granted[made] = true // our own commit, whose answer was lost
		}
		d.drop(k)
		return nil
	}
	r, there := d.requests[k]
	if !there || r.claim != d.claim || !r.claims.After(d.at) {
		return nil
	}
	g := d.openSteps(it.StepID)
	e := g.of(it.StepID)
	if d.paused(e.Data().Namespace, s.Capability) {
		return nil
	}
	if !e.Leasable(it.StepID, it.Number) {
		d.drop(k)
		return nil
	}
	if !d.hasRoom(it) {
		return nil
	}
	return d.grant(g, it)
}

// hasRoom tells whether the worker may get one more, for this session and this poll.
func (d *dispatch) hasRoom(it scheduler.DispatchItem) bool {
	w := d.workers[it.WorkerID]
	st := d.standing(w)
	st.Present = st.Present && w.session == it.SessionID
	if st.Hinders() != task.NotHindered {
		return false
	}
	if _, before := d.answered[answer{it.SessionID, it.RequestID}]; before && it.RequestID != "" {
		key := scheduler.PollKey{WorkerID: it.WorkerID, SessionID: it.SessionID, RequestID: it.RequestID}
		if !slices.Contains(d.done.Answered, key) {
			d.done.Answered = append(d.done.Answered, key)
		}
		return false
	}
	return true
}

func (d *dispatch) drop(k requestKey) {
	d.done.Dropped++
	drop(d.txn, d.requests, k)
}

// grant writes an attempt and its lease. A deadline that has come since the claim hinders it: its
// timer ends the step.
func (d *dispatch) grant(g *gate, it scheduler.DispatchItem) error {
	w, e := d.workers[it.WorkerID], g.of(it.StepID)
	r := d.requests[requestKey{it.StepID, it.Number}]
	d.version++
	a, l, err := e.Lease(d.at, it.StepID, task.Grant{
		AttemptID: it.AttemptID, Number: it.Number, WorkerID: w.id, SessionID: it.SessionID, WorkerName: w.Name,
		Node: w.Node, LeaseVersion: d.version, Duration: it.Duration,
	})
	var late *task.TransitionError
	if errors.As(err, &late) {
		d.drop(requestKey{it.StepID, it.Number})
		return nil
	}
	if err != nil {
		return err
	}
	drop(d.txn, d.requests, requestKey{it.StepID, it.Number})
	s := d.steps[it.StepID]
	s.attempts = append(slices.Clip(s.attempts), it.AttemptID)
	put(d.txn, d.steps, s.ID, s)
	put(d.txn, d.attempts, it.AttemptID, attempt{AttemptData: a.Data()})
	put(d.txn, d.leases, it.AttemptID, lease{
		attempt: it.AttemptID, step: s.ID, execution: s.execution, worker: w.id, session: it.SessionID, claim: d.claim,
		requestID: it.RequestID, version: d.version, expiresAt: l.ExpiresAt, capAt: l.CapAt, duration: it.Duration, delivery: firstDelivery,
	})
	if it.RequestID != "" {
		d.asked = append(d.asked, answer{it.SessionID, it.RequestID})
	}
	d.done.Granted[it.AttemptID] = true
	view := d.leaseView(d.leases[it.AttemptID])
	view.Input, view.ParentOutputs, view.Checkpoint = nil, nil, nil
	d.done.Leases = append(d.done.Leases, view)
	d.done.Waited = append(d.done.Waited, max(d.at.Sub(r.Due), 0))
	return g.save()
}
