package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Garbage that may gather before it is collected, and its bounds in percent of what is in use.
const (
	garbageAllowed = 128 << 20 // bytes
	leastGarbage   = 50
	mostGarbage    = 800
	collectorBeat  = 2 * time.Second
)

// tendCollector allows so much garbage as memory of a server can spare, whatever is in use, unless GOGC
// says otherwise. A server under load keeps tens of megabytes, and makes much more: by Go's default,
// as much garbage as there is in use, a fifth of its time went into collecting. One with ten thousand
// parked polls keeps hundreds, and must not take several times that.
func tendCollector(ctx context.Context) error {
	if _, set := os.LookupEnv("GOGC"); set {
		return nil
	}
	beat := time.NewTicker(collectorBeat)
	defer beat.Stop()
	percent := 0
	for {
		// A change stops all goroutines for a moment, so that small ones are left out.
		if wanted := garbagePercent(inUse()); wanted > percent+percent/8 || wanted < percent-percent/8 {
			debug.SetGCPercent(wanted)
			percent = wanted
		}
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		}
	}
}

// garbagePercent is what Go is told for so many bytes in use.
func garbagePercent(inUse uint64) int {
	if inUse == 0 {
		return mostGarbage
	}
	return min(max(int(garbageAllowed*100/inUse), leastGarbage), mostGarbage)
}

// inUse is what the last collection has left, and the stacks: what Go's percentage is of.
func inUse() (bytes uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 { // else this Go has no such figure
			bytes += s.Value.Uint64()
		}
	}
	return bytes
}
