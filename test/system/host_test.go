package system_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// ourCgroup returns the name of an engine's cgroup, because other engines may run on the machine.
func ourCgroup(state string) string {
	sum := sha256.Sum256([]byte(filepath.Join(state, "run")))
	return "fre-" + hex.EncodeToString(sum[:6])
}

// cgroups returns the names of the cgroups of all engines of the tests.
func (w *world) cgroups() []string {
	var names []string
	for _, state := range []string{w.state, filepath.Join(w.dir, "small", "state"), filepath.Join(w.dir, "readme", "state"), filepath.Join(w.dir, "lacking")} {
		names = append(names, ourCgroup(state))
	}
	return names
}

// checkHost fails the test if new mounts, cgroups, links, named network namespaces or sandboxed
// processes of the tests' engines are left at its end.
func (w *world) checkHost(t *testing.T) {
	t.Helper()
	before := w.hostHoldings(t)
	t.Cleanup(func() {
		until(t, func() error {
			var left []string
			for _, item := range w.hostHoldings(t) {
				if !slices.Contains(before, item) {
					left = append(left, item)
				}
			}
			if len(left) > 0 {
				return fmt.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
			return nil
		})
	})
}

func (w *world) hostHoldings(t testing.TB) []string {
	t.Helper()
	var held, hierarchies []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		// "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw"
		before, after, _ := strings.Cut(line, " - ")
		point := strings.Fields(before)[4]
		if strings.HasPrefix(point, w.dir+"/") || strings.HasPrefix(point, w.state+"/") || strings.Contains(after, " fre") {
			held = append(held, "mount "+point)
		}
		if strings.HasPrefix(after, "cgroup") {
			hierarchies = append(hierarchies, point)
		}
	}
	ours := w.cgroups()
	for _, dir := range hierarchies {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && slices.Contains(ours, d.Name()) {
				held = append(held, "cgroup "+path)
			}
			return nil // an unreadable directory is already gone
		})
	}
	for _, name := range ours {
		link := name[:15] // the kernel's limit
		if _, err := os.Lstat("/sys/class/net/" + link); err == nil {
			held = append(held, "link "+link)
		}
	}
	names, err := filepath.Glob("/run/netns/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		held = append(held, "network namespace "+name)
	}
	for _, p := range w.sandboxed(t) {
		held = append(held, "process "+p.String())
	}
	return held
}

// sandboxed lists the processes in the cgroups of the tests' engines.
func (w *world) sandboxed(t testing.TB) []testdaemon.Process {
	t.Helper()
	ours := w.cgroups()
	pids, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var found []testdaemon.Process
	for _, path := range pids {
		text, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(ours, func(name string) bool { return bytes.Contains(text, []byte("/"+name+"/")) }) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := testdaemon.FindProcess(pid); ok {
			found = append(found, p)
		}
	}
	return found
}
