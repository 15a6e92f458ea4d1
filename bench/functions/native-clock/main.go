// Command clock first of all reads the monotonic and the real-time clock, and prints both in
// nanoseconds. The difference to the monotonic time of the request on the same machine is the cost
// of a cold start.
//
// The imports need little initialisation: the time measures the sandbox, not the standard library.
package main

import (
	"strconv"

	"golang.org/x/sys/unix"
)

func main() {
	var mono, wall unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	if err == nil {
		err = unix.ClockGettime(unix.CLOCK_REALTIME, &wall)
	}
	if err != nil {
		unix.Exit(1)
	}
	out := make([]byte, 0, 48)
	out = strconv.AppendInt(out, mono.Nano(), 10)
	out = append(out, ' ')
	out = strconv.AppendInt(out, wall.Nano(), 10)
	out = append(out, '\n')
	if _, err := unix.Write(1, out); err != nil {
		unix.Exit(1)
	}
}
