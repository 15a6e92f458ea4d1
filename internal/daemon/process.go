package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Process names a process for good: no later one has the same pair.
type Process struct {
	PID   int
	start string // field 22 of /proc/PID/stat
}

// FindProcess names the process that has a pid now; false if none runs, one that
// has ended but was not waited for included.
func FindProcess(pid int) (Process, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from field 3 on
	return Process{pid, fields[19]}, fields[0] != "Z"
}

// Alive says whether it still runs.
func (p Process) Alive() bool {
	now, ok := FindProcess(p.PID)
	return ok && now == p
}

func (p Process) String() string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID)) // empty if it has ended
	return fmt.Sprintf("%d (%s)", p.PID, bytes.TrimSpace(name))
}

// Descendants are the running children of a process and theirs.
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

// Programs are the descendants that run something of a function's: neither a
// spawner nor a sandbox that waits for its function, whose number is the pool's.
func Programs(pid int) []Process {
	return slices.DeleteFunc(Descendants(pid), func(p Process) bool {
		// Not by comm: the shell is a memfd, which has no name there.
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		return err != nil || strings.HasPrefix(string(args), "fre-shell\x00")
	})
}
