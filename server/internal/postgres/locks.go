package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"

	"github.com/google/uuid"
)

// The order of locks, everywhere, within each ascending by id:
//
//	advisory keys (dispatch alone takes them)
//	→ scheduling requests → capabilities (share) → executions → steps → leases → workers
//	→ outbox heads → outbox events
//
// attempts, payloads, timers and timeline entries are written under their execution's or
// lease's lock only, and need no order of their own. Who holds an execution first (report,
// cancel, sweep) touches scheduling requests only with SKIP LOCKED and ON CONFLICT DO NOTHING.
// Dispatch goes the other way round and therefore never waits: what is locked is left for the
// next round. Capabilities and sessions are registered in transactions of their own.

// dispatchKey is the advisory key of one try of a step. Two different tries with the same
// hash only wait for each other's round.
func dispatchKey(step uuid.UUID, number int) int64 {
	sum := sha256.Sum256([]byte(step.String() + ":" + strconv.Itoa(number)))
	return int64(binary.BigEndian.Uint64(sum[:8])) // all 64 bits are wanted
}
