package telemetry

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

var _ outbox.Observer = (*Relay)(nil)

// loopRelay is the relay's loop.
const loopRelay scheduler.Loop = "relay"

// Relay observes the relay of the outbox.
type Relay struct {
	tries    counters[tryResult]
	duration prometheus.Histogram
	lost     prometheus.Counter
	health   *health
}

// tryResult is what came of a try to publish an event.
type tryResult string

const (
	tryAcknowledged tryResult = "acknowledged"
	tryFailed       tryResult = "failed"  // it is tried again
	tryRefused      tryResult = "refused" // for good: the event is DEAD
	tryAway         tryResult = "away"    // the sink cannot be reached
)

func newRelay(r prometheus.Registerer, h *health) *Relay {
	o := &Relay{
		tries: each(counter(r, "leasehold_outbox_publish_tries_total",
			"Tries to publish an event, by result: acknowledged by the sink, failed (tried again), refused (for good), away (the sink cannot be reached; does not count against the limit).",
			"result"), tryAcknowledged, tryFailed, tryRefused, tryAway),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leasehold_outbox_publish_duration_seconds", Buckets: shortSeconds(),
			Help: "Duration of a try to publish an event, up to the sink's acknowledgement.",
		}),
		lost: plainCounter(r, "leasehold_outbox_lost_claims_total",
			"Claims of events that another relay had taken over before their results were written: these events may have been published twice."),
		health: h,
	}
	r.MustRegister(o.duration)
	return o
}

// Tried counts a try to publish an event.
func (o *Relay) Tried(took time.Duration, err error) {
	result := tryAcknowledged
	if err != nil {
		result = failureOf(err)
	}
	o.tries.add(result, 1)
	o.duration.Observe(took.Seconds())
}

func failureOf(err error) tryResult {
	var refused *outbox.RefusedError
	var away *outbox.AwayError
	switch {
	case errors.As(err, &refused):
		return tryRefused
	case errors.As(err, &away):
		return tryAway
	default:
		return tryFailed
	}
}

// LostClaims counts lost claims.
func (o *Relay) LostClaims(n int) { o.lost.Add(float64(n)) }

// Looped notes that the relay lives.
func (o *Relay) Looped() { o.health.beat(loopRelay) }
