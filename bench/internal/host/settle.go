package host

import (
	"context"
	"fmt"
	"os"
	"time"
)

const (
	// settleWindow is how long the machine must have been quiet.
	settleWindow = 200 * time.Millisecond
	// settleLimit is how long a machine that others use is waited for.
	settleLimit = 2 * time.Second
	// quiet is the part of all CPU time that may be in use then.
	quiet = 0.15
)

// Settle waits until the machine has nothing much to do: what one peer left to
// the kernel to clean up must not be measured as the next one's. It gives up on
// a machine that does not become quiet; its only error is ctx's.
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

// Idle is how long the CPUs had nothing to do since the machine started, all together.
func Idle() (time.Duration, error) {
	busy, total, err := cpuTime()
	return time.Duration(total-busy) * (time.Second / ticks), err
}

// ticks are those of a second in /proc/stat: USER_HZ, which is the same on all machines.
const ticks = 100
