package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PrepareNetwork brings up loopback in a new network namespace and selects the congestion control
// "reno".
func PrepareNetwork() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	// /proc/sys/net belongs to the network namespace of the thread that opens the file.
	return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0)
}

// TwoCPUs returns the servers' CPU and the client's CPU. Both are the same on a machine with one
// CPU.
func TwoCPUs() ([2]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return [2]int{}, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for i := range 1024 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return [2]int{cpus[0], cpus[len(cpus)-1]}, nil
}

// OnCPU runs start pinned to one CPU. Processes that start creates inherit the thread's CPU.
func OnCPU(cpu int, start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	return errors.Join(start(), unix.SchedSetaffinity(0, &before))
}

// Tree returns pid and the pids of all its descendants.
func Tree(pid int) []int {
	all := []int{pid}
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is valid
	for _, file := range children {
		text, _ := os.ReadFile(file) // an ended thread has no children
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, Tree(child)...)
			}
		}
	}
	return all
}

// CPUTime returns the CPU time of the processes' live threads: the first number of
// /proc/PID/task/TID/schedstat (proc(5)), in nanoseconds. Ended threads are not counted.
func CPUTime(pids ...int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return 0, err
		}
		for _, thread := range threads {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, thread.Name()))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil {
				return 0, err
			}
			first, _, _ := strings.Cut(string(text), " ")
			ns, err := strconv.ParseInt(first, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("schedstat of %d: %w", pid, err)
			}
			sum += time.Duration(ns)
		}
	}
	return sum, nil
}
