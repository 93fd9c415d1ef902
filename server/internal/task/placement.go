package task

import (
	"maps"

	"github.com/google/uuid"
)

// Waiting is a scheduling request that a dispatcher has claimed.
type Waiting struct {
	StepID      uuid.UUID
	Number      int
	ExecutionID uuid.UUID
	Namespace   string
	Capability  string
	Node        string // empty: any
	AnswerBytes int
}

// Offer is what one parked poll can take.
type Offer struct {
	WorkerID     uuid.UUID
	Namespace    string
	Node         string
	Capabilities map[string]bool
	Room         int // leases that the poll asks for
	Bytes        int // payload bytes that its answer has room for
}

// Assignment gives a request to an offer, both by their position.
type Assignment struct{ Waiting, Offer int }

// Place gives requests, in their order, to the first offers that can take them. free is how
// many slots each worker has left; several offers may be of one worker. The first lease of
// an answer is taken whatever its size, so that a large one does not wait for ever.
func Place(requests []Waiting, offers []Offer, free map[uuid.UUID]int) []Assignment {
	p := placement{offers, maps.Clone(free), make([]int, len(offers)), make([]int, len(offers))}
	able := map[offerKey][]int{}
	var placed []Assignment
	for i := range requests {
		r := &requests[i]
		k := offerKey{r.Namespace, r.Capability}
		list, known := able[k]
		if !known {
			list = offersFor(offers, k)
		}
		// The full ones in front are dropped, or a thousand polls would be passed a thousand times.
		for len(list) > 0 && p.full(list[0]) {
			list = list[1:]
		}
		able[k] = list
		for _, o := range list {
			if p.fits(r, o) {
				p.take(r, o)
				placed = append(placed, Assignment{i, o})
				break
			}
		}
	}
	return placed
}

// placement is what is left of the offers while requests are placed.
type placement struct {
	offers []Offer
	left   map[uuid.UUID]int // free slots of each worker
	taken  []int             // leases in each answer
	bytes  []int             // their weight
}

func (p placement) full(o int) bool {
	return p.taken[o] >= p.offers[o].Room || p.left[p.offers[o].WorkerID] <= 0
}

func (p placement) fits(r *Waiting, o int) bool {
	room := p.taken[o] == 0 || p.bytes[o]+r.AnswerBytes <= p.offers[o].Bytes
	return room && !p.full(o) && MatchesNode(r.Node, p.offers[o].Node)
}

func (p placement) take(r *Waiting, o int) {
	p.taken[o]++
	p.bytes[o] += r.AnswerBytes
	p.left[p.offers[o].WorkerID]--
}

func (o *Offer) reach() Reach {
	return Reach{Namespace: o.Namespace, Node: o.Node, Capabilities: o.Capabilities}
}

type offerKey struct{ namespace, capability string }

// offersFor are the offers that can take something of a kind, on whatever node.
func offersFor(offers []Offer, k offerKey) []int {
	var list []int
	for i := range offers {
		if offers[i].reach().Hinders(Need{Namespace: k.namespace, Capability: k.capability}) == NotHindered {
			list = append(list, i)
		}
	}
	return list
}
