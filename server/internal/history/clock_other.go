//go:build !unix

package history

import "time"

// monotonic reads the time of day: without a clock that all processes share it is all that they
// have in common. It must not be set during a run.
func monotonic() int64 { return time.Now().UnixNano() } // compared with itself alone

func clockName() string { return "time of day" }
