package linux

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boottime is CLOCK_BOOTTIME of clock_gettime(2): the time since the machine started, in
// which it was suspended included. The clock of time.Since stands still meanwhile, so
// what others measure too, such as a lease, is not to be measured by it.
func Boottime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // there is none before Linux 2.6.39
	}
	return time.Duration(now.Nano())
}
