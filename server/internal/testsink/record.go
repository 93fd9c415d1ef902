package testsink

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
)

// Event is what a consumer reads of an event.
type Event struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	Execution string          `json:"subject"`
	Sequence  string          `json:"sequence"`
	Namespace string          `json:"namespace"`
	Data      json.RawMessage `json:"data"`
}

// Number is the event's place within its execution, from 1.
func (e *Event) Number() int64 {
	n, _ := strconv.ParseInt(e.Sequence, 10, 64) // 0 is no number; CheckOrder tells
	return n
}

// Delivery is one arrival of an event.
type Delivery struct {
	Event
	Body   []byte // as it came
	Before int    // how often the event had come before

	arrived, taken int // when, by the record's own count; 0: not taken
}

// Record keeps what arrived, in the order in which it did.
type Record struct {
	mu    sync.Mutex
	now   int
	list  []*Delivery
	times map[string]int
	ids   map[string]bool // of the events that were taken
}

// Arrived notes the arrival of an event.
func (r *Record) Arrived(body []byte) (*Delivery, error) {
	d := &Delivery{Body: slices.Clone(body)}
	if err := json.Unmarshal(body, &d.Event); err != nil {
		return nil, fmt.Errorf("event %s: %w", body, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.times == nil {
		r.times, r.ids = map[string]int{}, map[string]bool{}
	}
	r.now++
	d.arrived, d.Before = r.now, r.times[d.ID]
	r.times[d.ID]++
	r.list = append(r.list, d)
	return d, nil
}

// Taken notes that an event is about to be acknowledged.
func (r *Record) Taken(d *Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now++
	d.taken = r.now
	r.ids[d.ID] = true
}

// Deliveries are all so far.
func (r *Record) Deliveries() []*Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// Times is how often the event came.
func (r *Record) Times(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.times[id]
}

// IDs are those of the events that were taken at least once.
func (r *Record) IDs() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.ids)
}

// Repeats is how many arrivals were not an event's first.
func (r *Record) Repeats() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.list) - len(r.times)
}

// CheckOrder tells where the order within an execution was broken: its events come first in
// the order of their sequence from 1 on without a gap, and none comes before the one before
// it was taken.
func (r *Record) CheckOrder() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := map[string]map[int64]int{} // when each was taken first
	for _, d := range r.list {
		if d.taken == 0 {
			continue
		}
		of := taken[d.Execution]
		if of == nil {
			of = map[int64]int{}
			taken[d.Execution] = of
		}
		if at := of[d.Number()]; at == 0 || d.taken < at {
			of[d.Number()] = d.taken
		}
	}
	var broken []string
	for _, d := range r.list {
		n := d.Number()
		before := taken[d.Execution][n-1]
		if d.Before == 0 && n != 1 && (n < 1 || before == 0 || before > d.arrived) {
			broken = append(broken, fmt.Sprintf("event %s (%s) of %s came at %d; the one before it was taken at %d",
				d.Sequence, d.Type, d.Execution, d.arrived, before))
		}
	}
	return broken
}
