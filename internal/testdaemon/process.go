package testdaemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Process identifies a process for good: a later process with the same pid has another start time.
type Process struct {
	PID   int
	start string // field 22 of /proc/PID/stat
}

// FindProcess returns the process that has a pid now. The result is false if no process runs under
// the pid, or only a zombie.
func FindProcess(pid int) (Process, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from field 3 on
	return Process{pid, fields[19]}, fields[0] != "Z"
}

// Alive reports whether the process still runs.
func (p Process) Alive() bool {
	now, ok := FindProcess(p.PID)
	return ok && now == p
}

func (p Process) String() string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID)) // empty if it has ended
	return fmt.Sprintf("%d (%s)", p.PID, bytes.TrimSpace(name))
}

// Descendants returns the running children of a process and all their descendants.
func Descendants(pid int) []Process {
	var found []Process
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				continue
			}
			if p, ok := FindProcess(child); ok {
				found = append(found, p)
			}
			found = append(found, Descendants(child)...)
		}
	}
	return found
}

// Programs returns the descendants that run a function's program. It leaves out spawners and parked
// sandboxes, because their number depends on the pool.
func Programs(pid int) []Process {
	return slices.DeleteFunc(Descendants(pid), func(p Process) bool {
		// comm cannot tell: the spawner runs from a memfd and has no name there.
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		return err != nil || strings.HasPrefix(string(args), "fre-spawner\x00")
	})
}
