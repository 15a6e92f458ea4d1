package linux

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boottime returns the time since the machine started, including the time in which it was
// suspended (CLOCK_BOOTTIME of clock_gettime(2)). The clock of time.Since stands still while
// the machine is suspended. Use Boottime for a lease, which other machines measure too.
func Boottime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // missing before Linux 2.6.39
	}
	return time.Duration(now.Nano())
}
