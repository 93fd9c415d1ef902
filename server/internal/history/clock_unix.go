//go:build unix

package history

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// monotonic reads the machine's monotonic clock, which all its processes share: times that
// several of them took can be compared as they are, whatever happens to the time of day. An error
// is not possible for a clock that exists.
func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// clockName names the clock: that of this boot of this machine, as far as the system tells.
func clockName() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "monotonic"
	}
	return strings.TrimSpace(string(id))
}
