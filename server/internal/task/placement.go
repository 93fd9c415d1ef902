package task

import "github.com/google/uuid"

// Waiting is a scheduling request that a dispatcher has claimed.
type Waiting struct {
	StepID      uuid.UUID
	Number      int
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
	left := make(map[uuid.UUID]int, len(free))
	for id, n := range free {
		left[id] = n
	}
	taken := make([]int, len(offers))
	bytes := make([]int, len(offers))
	byKey := offersByKey(offers)
	var placed []Assignment
	for i, r := range requests {
		for _, o := range byKey[offerKey{r.Namespace, r.Capability}] {
			offer := &offers[o]
			fits := taken[o] == 0 || bytes[o]+r.AnswerBytes <= offer.Bytes
			if taken[o] >= offer.Room || left[offer.WorkerID] <= 0 || !fits || !MatchesNode(r.Node, offer.Node) {
				continue
			}
			taken[o]++
			bytes[o] += r.AnswerBytes
			left[offer.WorkerID]--
			placed = append(placed, Assignment{i, o})
			break
		}
	}
	return placed
}

// MatchesNode tells whether a step pinned to a node (or to none) may run on a worker's node.
func MatchesNode(pinned, node string) bool { return pinned == "" || pinned == node }

type offerKey struct{ namespace, capability string }

func offersByKey(offers []Offer) map[offerKey][]int {
	byKey := map[offerKey][]int{}
	for i := range offers {
		for c := range offers[i].Capabilities {
			k := offerKey{offers[i].Namespace, c}
			byKey[k] = append(byKey[k], i)
		}
	}
	return byKey
}
