package scheduler

import (
	"maps"

	"github.com/google/uuid"
)

// Rooms merges the offers that have room into the groups that they can serve: of each capability
// the steps pinned to no node, and those pinned to the offer's. total is how many leases all of
// them can take, given how many slots of each worker are free.
func (c *ClaimCommand) Rooms(free map[uuid.UUID]int) (rooms map[Group]int, total int) {
	rooms = map[Group]int{}
	left := maps.Clone(free)
	for i := range c.Offers {
		o := &c.Offers[i]
		room := min(o.Room, left[o.WorkerID])
		if room <= 0 {
			continue
		}
		left[o.WorkerID] -= room
		total += room
		for name := range o.Capabilities {
			rooms[Group{Namespace: o.Namespace, Capability: name}] += room
			if o.Node != "" {
				rooms[Group{Namespace: o.Namespace, Capability: name, Node: o.Node}] += room
			}
		}
	}
	return rooms, total
}
