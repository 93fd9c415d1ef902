package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/telemetry"
)

func TestBounded(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	if err := bounded(time.Minute, "it", func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("got %v, want what the function returned", err)
	}
	release := make(chan struct{})
	defer close(release)
	err := bounded(10*time.Millisecond, "it", func() error { <-release; return nil })
	if !errors.Is(err, errNotEnded) || !strings.Contains(err.Error(), "it: did not end in time (10ms)") {
		t.Errorf("got %v, want that it did not end", err)
	}
}

func TestUnlessAsked(t *testing.T) {
	t.Parallel()
	asked, cancel := context.WithCancel(t.Context())
	cancel()
	ended := fmt.Errorf("start: %w", context.Canceled)
	failure := errors.New("failure")
	if err := unlessAsked(asked, ended); err != nil {
		t.Errorf("asked to end: %v", err)
	}
	if err := unlessAsked(t.Context(), ended); err == nil {
		t.Error("not asked to end, and no error")
	}
	if err := unlessAsked(asked, failure); !errors.Is(err, failure) {
		t.Errorf("failed while asked to end: %v", err)
	}
}

// TestShutdown_IsWithin10Seconds adds up the bounds that follow each other.
func TestShutdown_IsWithin10Seconds(t *testing.T) {
	t.Parallel()
	const byDefault = 7 * time.Second
	server := func(calls time.Duration) time.Duration {
		return calls + stopMargin + partsLimit + storeLimit + telemetry.FlushLimit
	}
	if total := server(byDefault); total >= 10*time.Second {
		t.Errorf("serve: %s", total)
	}
	if total := workerLimit + server(devShutdownLimit) + postgresLimit; total >= 10*time.Second {
		t.Errorf("dev: %s", total)
	}
}
