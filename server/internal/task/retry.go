package task

import (
	"math"
	"slices"
	"time"
)

// MaxDuration bounds every duration of the domain: ten years of 365 days.
const MaxDuration = 10 * 365 * 24 * time.Hour

// Unlimited as MaximumAttempts sets no limit.
const Unlimited = -1

// RetryPolicy says how often and when a step is tried again.
type RetryPolicy struct {
	InitialInterval    time.Duration
	BackoffCoefficient float64
	MaximumInterval    time.Duration
	MaximumAttempts    int // Unlimited, or at least 1
	Jitter             float64
	NonRetryableTypes  []string
}

// DefaultRetryPolicy is what a step without a policy gets.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		InitialInterval:    time.Second,
		BackoffCoefficient: 2,
		MaximumInterval:    100 * time.Second,
		MaximumAttempts:    3,
		Jitter:             0.2,
	}
}

// Backoff is the wait after the nth failure in question, n from 1. chance is from [0, 1).
// Whatever the numbers, it is from 0 to MaximumInterval.
func (p RetryPolicy) Backoff(n int, chance float64) time.Duration {
	limit := bounded(p.MaximumInterval)
	first := bounded(p.InitialInterval)
	if first == 0 { // 0 × Inf is NaN: a zero interval stays zero
		return 0
	}
	wait := float64(first) * math.Pow(max(p.BackoffCoefficient, 1), float64(max(n, 1)-1))
	if math.IsNaN(wait) || wait > float64(limit) {
		wait = float64(limit)
	}
	jitter := unit(p.Jitter)
	wait *= 1 - jitter + 2*jitter*unit(chance)
	// Compared as integers at last: a float cannot hold every large duration, and rounds up too.
	return min(time.Duration(wait), limit)
}

// unit keeps a number in [0, 1]; what is none is 0.
func unit(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(max(x, 0), 1)
}

// bounded keeps a duration in [0, MaxDuration], so that no instant made with it overflows.
func bounded(d time.Duration) time.Duration { return min(max(d, 0), MaxDuration) }

// Exhausted tells whether an attempt that counts was the last one allowed.
func (p RetryPolicy) Exhausted(counted int) bool {
	return p.MaximumAttempts != Unlimited && counted >= p.MaximumAttempts
}

func (p RetryPolicy) refuses(f *Failure) bool {
	return f != nil && (f.NonRetryable || slices.Contains(p.NonRetryableTypes, f.Type))
}
