package host

import (
	"context"
	"fmt"
	"os"
	"time"
)

const (
	// settleWindow is the time during which the machine must be quiet.
	settleWindow = 200 * time.Millisecond
	// settleLimit bounds the wait on a machine with other users.
	settleLimit = 2 * time.Second
	// quiet is the highest share of busy CPU time on a quiet machine.
	quiet = 0.15
)

// Settle waits until the machine is quiet: the kernel's cleanup after one peer must not count
// against the next peer. After settleLimit Settle gives up without an error. Errors come from ctx
// or from reading /proc/stat.
func Settle(ctx context.Context) error {
	for limit := time.Now().Add(settleLimit); time.Now().Before(limit); {
		busy, total, err := cpuTime()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settleWindow):
		}
		b, t, err := cpuTime()
		if err != nil {
			return err
		}
		if t > total && float64(b-busy) <= quiet*float64(t-total) {
			break
		}
	}
	return nil
}

// cpuTime reads the first line of /proc/stat (proc_stat(5)): user, nice,
// system, idle, iowait, irq, softirq, steal time of all CPUs, in ticks.
func cpuTime() (busy, total uint64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	var t [8]uint64
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]); err != nil {
		return 0, 0, fmt.Errorf("/proc/stat: %w", err)
	}
	for _, ticks := range t {
		total += ticks
	}
	return total - t[3] - t[4], total, nil
}

// Idle returns the total idle time of all CPUs since boot.
func Idle() (time.Duration, error) {
	busy, total, err := cpuTime()
	return time.Duration(total-busy) * (time.Second / ticks), err
}

// ticks is the number of ticks per second in /proc/stat: USER_HZ, equal on all machines.
const ticks = 100
