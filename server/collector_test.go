package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
)

// The allowance is the same, whatever is in use, within the bounds.
func TestCollector_AllowsTheSameGarbage(t *testing.T) {
	for inUse, want := range map[uint64]int{0: mostGarbage, 1 << 20: mostGarbage, 32 << 20: 400, 128 << 20: 100, 4 << 30: leastGarbage} {
		if got := garbagePercent(inUse); got != want {
			t.Errorf("%d bytes in use: %d %%, want %d", inUse, got, want)
		}
	}
	runtime.GC() // before the first one Go has counted nothing
	if inUse() == 0 {
		t.Error("nothing is in use: this Go has other names for it")
	}
}

// GOGC is the user's word. Caught: a value that is set over it.
func TestCollector_HeedsGOGC(t *testing.T) {
	before := debug.SetGCPercent(77)
	defer debug.SetGCPercent(before)
	over, end := context.WithCancel(t.Context())
	end()
	t.Setenv("GOGC", "77")
	if err := tendCollector(over); err != nil || debug.SetGCPercent(77) != 77 {
		t.Errorf("%v, or GOGC was not heeded", err)
	}
}
