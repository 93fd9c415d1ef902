// Package storetest holds every store to one contract: what callers of the ports of scheduler and
// outbox see, whichever adapter is behind them. Run runs it, once for each store. It knows of no
// adapter; only tests import it.
//
// What only a database has (locks that others hold, lost commits, plans) is tested where that is.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// Store is what is tested of a store.
type Store interface {
	scheduler.Store
	ListTimeline(ctx context.Context, execution uuid.UUID, after int64, limit int) ([]scheduler.EntryView, error)
}

// Stand is an empty store that writes every type of event.
type Stand struct {
	Store  Store
	Outbox outbox.Source
	// Pass lets so much of the store's time pass at once.
	Pass func(time.Duration)
}

// Run tests stores; each case has one of its own.
func Run(t *testing.T, open func(*testing.T) Stand) {
	t.Helper()
	for name, test := range map[string]func(*rig){
		"Enqueue/accepts":                     enqueueAccepts,
		"Enqueue/repeats a key":               enqueueRepeats,
		"Enqueue/all or nothing":              enqueueAllOrNothing,
		"Claim/order":                         claimOrder,
		"Claim/what cannot run hides nothing": claimHidesNothing,
		"Claim/belongs to its claimer":        claimBelongs,
		"NextDue/groups":                      nextDue,
		"Dispatch/grants":                     dispatchGrants,
		"Dispatch/repeated":                   dispatchRepeated,
		"Dispatch/conditions":                 dispatchConditions,
		"Dispatch/answers a poll once":        dispatchAnswersOnce,
		"Dispatch/drops what nobody needs":    dispatchDrops,
		"Contents/payloads":                   contentsPayloads,
		"Lookup/sessions and requests":        lookup,
		"Return/only the last delivery":       returnLastDelivery,
		"Return/not once renewed":             returnRenewed,
		"Renew/lengthens within bounds":       renewBounds,
		"Renew/refusals":                      renewRefusals,
		"Report/success and its children":     reportSuccess,
		"Report/failures and retries":         reportFailures,
		"Report/repeats and late ones":        reportLate,
		"Report/release and cancel":           reportReleaseCancel,
		"Report/items are apart":              reportItems,
		"Register/sessions":                   registerSessions,
		"Deregister/leases":                   deregisterLeases,
		"Cancel/waits and runs":               cancelAll,
		"Cancel/grace":                        cancelGrace,
		"Cancel/fail fast":                    failFast,
		"Retry/rounds":                        retryRounds,
		"Pause/grants":                        pauseGrants,
		"Drain/workers":                       drainWorkers,
		"Revoke/lease":                        revokeLease,
		"Terminate/execution":                 terminate,
		"Sweep/one at a time":                 sweepOne,
		"Sweep/credit":                        sweepCredit,
		"Sweep/leases":                        sweepLeases,
		"Sweep/batches":                       sweepBatches,
		"Sweep/fail fast in one batch":        sweepFailFast,
		"Timers/start":                        timerStart,
		"Timers/steps":                        timerSteps,
		"Timers/deadline":                     timerDeadline,
		"Watch/changes":                       watchChanges,
		"Watch/timeline":                      timeline,
		"Outbox/order":                        outboxOrder,
		"Outbox/failures":                     outboxFailures,
		"Outbox/lost claims":                  outboxLostClaims,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&rig{T: t, Stand: open(t)})
		})
	}
}
