package sandbox

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox/cgroup"
)

// LimitError reports a limit that the host cannot enforce. errors.Is finds EINVAL.
type LimitError struct {
	Limit      string // "memory", "cpu", "pids" or "files"
	Want, Most int64  // in the units of [Limits]; Most is 0 if the controller is missing
	Controller string // a cgroup controller, or "RLIMIT_NOFILE"
	Host       string
	By         string // source of the bound: "memory.max of /sys/fs/cgroup/fre.slice"
	next       string // remedy other than a lower limit
}

func (e *LimitError) Error() string {
	if e.Most == 0 {
		return fmt.Sprintf("limit of %s cannot be enforced: host %s has no cgroup controller %s; enable the controller at boot (fre doctor)",
			e.amount(e.Want, math.Ceil), e.Host, e.Controller)
	}
	controller := e.Controller
	if e.Limit != "files" {
		controller = "cgroup controller " + controller
	}
	return fmt.Sprintf("limit of %s is above the maximum of %s on host %s: %s (%s); lower the limit, or %s",
		e.amount(e.Want, math.Ceil), controller, e.Host, e.amount(e.Most, math.Floor), e.By, e.next)
}

func (e *LimitError) Unwrap() error { return unix.EINVAL }

// Code returns [failure.Template].
func (e *LimitError) Code() failure.Code { return failure.Template }

// amount formats n for people. round is such that the message's two amounts never look equal.
func (e *LimitError) amount(n int64, round func(float64) float64) string {
	switch e.Limit {
	case "memory":
		return fmt.Sprintf("%.0f MiB of memory", round(float64(n)/(1<<20)))
	case "cpu":
		return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64) + " CPUs"
	case "files":
		return strconv.FormatInt(n, 10) + " open files"
	}
	return strconv.FormatInt(n, 10) + " processes"
}

// bound is the highest value of one limit that the host can enforce.
type bound struct {
	LimitError // without Want
	of         func(*Limits) *int64
	missing    bool // the host lacks the controller
}

// bounds reads the current bounds of the host and of the groups above the engine's.
func (h *shared) bounds() ([]bound, error) {
	memory, err := HostMemory()
	if err != nil {
		return nil, err
	}
	pids, err := hostPids()
	if err != nil {
		return nil, err
	}
	layout, err := cgroup.Detect()
	if err != nil {
		return nil, fmt.Errorf("detect cgroups: %w", err)
	}
	above, err := layout.Above()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	list := []bound{
		{of: func(l *Limits) *int64 { return &l.MemoryBytes }, LimitError: LimitError{
			Limit: "memory", Most: memory, By: "the host's memory", next: "use a host with more memory",
		}},
		{of: func(l *Limits) *int64 { return &l.CPUMillis }, LimitError: LimitError{
			Limit: "cpu", Most: int64(h.cpus.Count()) * 1000, By: "the engine's CPUs", next: "use a host with more CPUs",
		}},
		{of: func(l *Limits) *int64 { return &l.Pids }, LimitError: LimitError{
			Limit: "pids", Most: pids, By: "kernel.pid_max", next: "raise kernel.pid_max",
		}},
	}
	for i := range list {
		b := &list[i]
		c := cgroup.Controller(b.Limit)
		b.Controller, b.missing = b.Limit, slices.Contains(layout.Missing(), c)
		if a, ok := above[c]; ok && a.Most < b.Most {
			b.Most, b.By, b.next = a.Most, filepath.Base(a.File)+" of "+filepath.Dir(a.File), "raise the parent's limit"
		}
	}
	list = append(list, bound{of: func(l *Limits) *int64 { return &l.Files }, LimitError: LimitError{
		Limit: "files", Controller: "RLIMIT_NOFILE", Most: h.maxFiles, By: "the engine's own limit", next: "raise LimitNOFILE of the engine's service",
	}})
	for i := range list {
		list[i].Host = host
	}
	return list, nil
}

// CheckLimits returns a [LimitError] if the host cannot enforce a limit: the limit exceeds the
// host's resources, or the host lacks the controller. CheckLimits ignores limits of zero.
func (h *Host) CheckLimits(l Limits) error {
	bounds, err := h.bounds()
	if err != nil {
		return err
	}
	return checkLimits(l, bounds)
}

func checkLimits(l Limits, bounds []bound) error {
	for _, b := range bounds {
		e := b.LimitError
		if e.Want = *b.of(&l); b.missing {
			e.Most = 0
		}
		if e.Want > e.Most {
			return &e
		}
	}
	return nil
}

// CutLimits returns l with each limit reduced to the bound of this host.
func (h *Host) CutLimits(l Limits) (Limits, error) {
	bounds, err := h.bounds()
	if err != nil {
		return l, err
	}
	return cutLimits(l, bounds), nil
}

func cutLimits(l Limits, bounds []bound) Limits {
	for _, b := range bounds {
		limit := b.of(&l)
		*limit = min(*limit, b.Most)
	}
	return l
}

// checkFiles refuses too many open files, the only limit that cannot be set above its bound. A
// sandbox with more memory than the host has may still run.
func (h *shared) checkFiles(l Limits) error {
	if l.Files <= h.maxFiles {
		return nil
	}
	bounds, err := h.bounds()
	if err != nil {
		return err
	}
	return checkLimits(Limits{Files: l.Files}, bounds)
}

// HostMemory returns the host's memory in bytes.
func HostMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the host's memory: %w", err)
	}
	return int64(info.Totalram) * int64(info.Unit), nil
}

// hostPids returns the number of process and thread ids of the kernel.
func hostPids() (int64, error) {
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
