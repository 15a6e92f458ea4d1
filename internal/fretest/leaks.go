package fretest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// leaksWithin bounds the wait for resources to disappear: kernel threads and the Go runtime free
// some of them with a delay, and a busy machine takes longer. Only a leak takes all of it.
const leaksWithin = time.Minute

// CheckLeaks fails the test if more fds, mounts, FRE cgroups, child processes or goroutines exist
// after the test than before. Call CheckLeaks first, because its check runs after all cleanups
// registered later. CheckLeaks does not work in parallel tests.
func CheckLeaks(t testing.TB) {
	t.Helper()
	before := take(t)
	t.Cleanup(func() {
		deadline := time.Now().Add(leaksWithin)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			runtime.GC() // closes files without a reference: os.File has a finalizer
			left := take(t).minus(before)
			if len(left) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
				if slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, "goroutine ") }) {
					t.Logf("goroutines:\n%s", stacks())
				}
				return
			}
			<-tick.C
		}
	})
}

// holdings counts or lists the resources of a process, by name.
type holdings struct {
	fds        map[string]int // by the target of the link in /proc/self/fd
	mounts     []string
	cgroups    []string
	children   []string
	goroutines map[string]int // by the function that created each goroutine
}

func take(t testing.TB) holdings {
	t.Helper()
	return holdings{
		fds:        openFiles(t),
		mounts:     slices.DeleteFunc(mounts(t), func(m string) bool { return ofAnother(m, t.Name()) }),
		cgroups:    cgroups(),
		children:   children(t),
		goroutines: goroutines(),
	}
}

func (h holdings) minus(old holdings) []string {
	var left []string
	lists := []struct {
		name     string
		now, was []string
	}{
		{"mount", h.mounts, old.mounts},
		{"cgroup", h.cgroups, old.cgroups},
		{"child process", h.children, old.children},
	}
	for _, l := range lists {
		for _, item := range l.now {
			if slices.Contains(l.was, item) || l.name == "cgroup" && inUse(item) {
				continue
			}
			left = append(left, l.name+" "+item)
		}
	}
	counts := []struct {
		name     string
		now, was map[string]int
	}{
		{"fd", h.fds, old.fds},
		{"goroutine", h.goroutines, old.goroutines},
	}
	for _, c := range counts {
		for item, n := range c.now {
			if n > c.was[item] {
				left = append(left, fmt.Sprintf("%s %s (%d, before %d)", c.name, item, n, c.was[item]))
			}
		}
	}
	slices.Sort(left)
	return left
}

// openFiles counts fds by target. An fd of a network namespace has the target net:[inode].
func openFiles(t testing.TB) map[string]int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]int{}
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		// The directory's own fd is closed by now. The runtime keeps its epoll and event fds after
		// the first use.
		if err != nil || target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]" {
			continue
		}
		files[target]++
	}
	return files
}

func mounts(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		// A mount with a master was made on the host and propagated here.
		before, _, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); len(fields) > 4 && !strings.Contains(before, " master:") {
			points = append(points, fields[0]+" on "+fields[4])
		}
	}
	return points
}

// ofAnother reports whether a mount lies below the temporary directory of another test than test.
// Tests of other packages run at the same time.
func ofAnother(mount, test string) bool {
	_, point, _ := strings.Cut(mount, " on ")
	dir, ok := strings.CutPrefix(point, filepath.Clean(os.TempDir())+"/Test")
	own, _, _ := strings.Cut(test, "/")
	return ok && !strings.HasPrefix("Test"+dir, own)
}

// cgroups lists the topmost cgroups named fre-* in every hierarchy.
func cgroups() []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it went away while we looked
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), "fre-") {
			found = append(found, path)
			return fs.SkipDir
		}
		return nil
	})
	return found
}

// inUse reports whether a cgroup belongs to an engine in a test of another package that runs at the
// same time: the cgroup has processes, or another process holds its files open.
func inUse(group string) bool {
	used := false
	_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "cgroup.procs" {
			procs, _ := os.ReadFile(path)
			used = used || len(procs) > 0
		}
		return nil
	})
	if used {
		return true
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	own := "/proc/" + strconv.Itoa(os.Getpid()) + "/"
	for _, f := range files {
		target, err := os.Readlink(f)
		if err == nil && !strings.HasPrefix(f, own) && strings.HasPrefix(target, group+"/") {
			return true
		}
	}
	return false
}

func children(t testing.TB) []string {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, task := range tasks {
		pids, err := os.ReadFile(filepath.Join("/proc/self/task", task.Name(), "children"))
		if err != nil {
			continue // the thread has ended
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			if _, err := strconv.Atoi(pid); err != nil {
				continue
			}
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			found = append(found, pid+" "+strings.TrimSpace(string(name)))
		}
	}
	return found
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	for buf := make([]byte, 1<<16); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return string(buf[:n])
		}
	}
}

func goroutines() map[string]int {
	count := map[string]int{}
	for g := range strings.SplitSeq(stacks(), "\n\n") {
		origin := "main"
		if _, after, ok := strings.Cut(g, "\ncreated by "); ok {
			origin, _, _ = strings.Cut(after, " in goroutine")
			origin, _, _ = strings.Cut(origin, "\n")
		}
		count[origin]++
	}
	return count
}
