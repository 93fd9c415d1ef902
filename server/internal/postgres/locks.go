package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// The order of locks, everywhere, within each ascending by id:
//
//	advisory keys (dispatch, enqueue and registration, each in a space of its own)
//	→ scheduling requests → capabilities (key share) → executions → steps → leases → workers
//	→ outbox heads → outbox events
//
// attempts, payloads, timers and timeline entries are written under their execution's or
// lease's lock only, and need no order of their own. Who holds an execution first (report,
// cancel, sweep) touches scheduling requests only with SKIP LOCKED and ON CONFLICT DO NOTHING.
// Dispatch goes the other way round and therefore never waits: what is locked is left for the
// next round. Capabilities and sessions are registered in transactions of their own, and so is
// the wait of a pause or a drain for the dispatches under way: it locks capabilities or workers
// only, once what it waits for is committed.

// idempotencyKey is the advisory key over inserting under an idempotency key: an insert of a
// key that another transaction has inserted and not committed would wait for that one, and
// there is no SKIP LOCKED for it.
func idempotencyKey(namespace, key string) int64 { return advisoryKey("key", namespace, key) }

// workerKey is the advisory key over registering under a worker's name.
func workerKey(namespace, name string) int64 { return advisoryKey("worker", namespace, name) }

// advisoryKey hashes parts, which cannot be confused with others: none of them holds NUL.
func advisoryKey(parts ...string) int64 {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return int64(binary.BigEndian.Uint64(sum[:8])) // all 64 bits are wanted
}

// dispatchKey is the advisory key of one try of a step. Two different tries with the same
// hash only wait for each other's round.
func dispatchKey(step uuid.UUID, number int) int64 {
	return advisoryKey(step.String() + ":" + strconv.Itoa(number))
}
