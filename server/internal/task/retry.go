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
	limit := float64(min(max(p.MaximumInterval, 0), MaxDuration))
	wait := float64(max(p.InitialInterval, 0)) * math.Pow(max(p.BackoffCoefficient, 1), float64(max(n, 1)-1))
	if math.IsNaN(wait) || wait > limit { // 0 × Inf is NaN: a zero interval stays zero
		wait = limit
		if p.InitialInterval <= 0 {
			wait = 0
		}
	}
	jitter := min(max(p.Jitter, 0), 1)
	wait *= 1 - jitter + 2*jitter*chance
	return time.Duration(min(wait, limit))
}

// Exhausted tells whether an attempt that counts was the last one allowed.
func (p RetryPolicy) Exhausted(counted int) bool {
	return p.MaximumAttempts != Unlimited && counted >= p.MaximumAttempts
}

func (p RetryPolicy) refuses(f *Failure) bool {
	return f != nil && (f.NonRetryable || slices.Contains(p.NonRetryableTypes, f.Type))
}
