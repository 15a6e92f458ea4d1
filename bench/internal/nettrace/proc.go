package nettrace

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of /proc/stat: USER_HZ is 100 on all Linux systems.
const tick = time.Second / 100

// softirqs returns the time of each CPU in soft interrupts.
func softirqs() ([]time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	return parseStat(string(text))
}

// parseStat parses the lines "cpuN user nice system idle iowait irq softirq …" of /proc/stat
// (proc_stat(5)). An offline CPU has no line and gets 0.
func parseStat(text string) ([]time.Duration, error) {
	var all []time.Duration
	for line := range strings.Lines(text) {
		number, ok := strings.CutPrefix(line, "cpu")
		if !ok || number == "" || number[0] == ' ' {
			continue
		}
		fields := strings.Fields(number)
		if len(fields) < 8 {
			return nil, fmt.Errorf("/proc/stat: %q", line)
		}
		cpu, err := strconv.ParseUint(fields[0], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("/proc/stat: %q", line)
		}
		ticks, err := strconv.ParseInt(fields[7], 10, 48)
		if err != nil || ticks < 0 || ticks > math.MaxInt64/int64(tick) {
			return nil, fmt.Errorf("/proc/stat: %q", line)
		}
		for len(all) <= int(cpu) {
			all = append(all, 0)
		}
		all[cpu] = time.Duration(ticks) * tick
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("/proc/stat has no CPU")
	}
	return all, nil
}

// runQueue returns the time that each thread of a process was runnable but waited for a CPU, nil if
// the process has ended.
func runQueue(pid int) map[int]time.Duration {
	dir := fmt.Sprintf("/proc/%d/task/", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	all := map[int]time.Duration{}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(dir + thread.Name() + "/schedstat")
		if err != nil {
			continue // the thread has ended
		}
		if waited, err := parseSchedstat(string(text)); err == nil {
			all[id] = waited
		}
	}
	return all
}

// parseSchedstat returns the second of "run wait slices", in nanoseconds
// (Documentation/scheduler/sched-stats.rst).
func parseSchedstat(text string) (time.Duration, error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return 0, fmt.Errorf("schedstat: %q", text)
	}
	ns, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil || ns < 0 {
		return 0, fmt.Errorf("schedstat: %q", text)
	}
	return time.Duration(ns), nil
}

// namespaceOf returns the inode of a process's network namespace.
func namespaceOf(pid string) (uint64, error) {
	var st unix.Stat_t
	path := "/proc/" + pid + "/ns/net"
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
