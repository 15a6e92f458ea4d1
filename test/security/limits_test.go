package security

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
)

// A bomb of processes, memory, files or CPU stops at its sandbox's limit, harms no neighbour, and
// leaves no trace after the kill. test/robustness measures the cost for a neighbour.
func TestBombs(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	neighbour, _, _ := startReady(t, h, prog(root, "sleep"))
	for _, c := range []struct {
		name string
		args []string
		ends bool // ends without a kill
	}{
		{"processes", []string{"copies", "100000"}, false},
		{"processes without end", []string{"copies", "-1"}, false},
		{"memory", []string{"eat", "1000000000"}, true},
		{"files", []string{"open"}, true},
		{"files in all processes", []string{"hoard"}, false},
		{"cpu", []string{"spinall"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := prog(root, c.args...)
			spec.Limits = sandbox.Limits{Pids: 50, MemoryBytes: 64 << 20, Files: 64}
			s, out := start(t, h, spec)
			switch c.args[0] {
			case "copies", "hoard":
				if c.args[len(c.args)-1] != "-1" {
					if line := readLine(t, out); !strings.HasPrefix(line, "ready ") || len(line) != len("ready 12") {
						t.Errorf("with room for 50 processes: %q", line)
					}
				}
			}
			if got := run(t, h, prog(root, "args", "meanwhile")); got != "meanwhile\n" {
				t.Errorf("a start meanwhile: %q", got)
			}
			if !c.ends {
				s.Kill()
			}
			status := wait(t, s)
			if _, err := io.ReadAll(out); err != nil {
				t.Errorf("some of it outlived its first process: %v", err)
			}
			if c.name == "memory" && !status.OOMKilled {
				t.Errorf("ended with %+v, want OOMKilled", status)
			}
			if got := run(t, h, prog(root, "args", "after")); got != "after\n" {
				t.Errorf("a start afterwards: %q", got)
			}
		})
	}
	select {
	case <-neighbour.Done():
		t.Errorf("the neighbour ended: %+v", neighbour.Status())
	default:
	}
}

// The memory limit covers data in sockets. On cgroup v1 the kernel drops further datagrams; on v2
// they count as the sandbox's memory and end the sandbox. Connections, netlink answers and file
// locks over the limit end the sandbox as well.
func TestKernelMemory(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	limits := sandbox.Limits{Pids: 50, MemoryBytes: 64 << 20, Files: 4000}
	spec := prog(root, "flood-datagrams")
	spec.Limits = limits
	s, out := start(t, h, spec)
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	status, kept := wait(t, s), int64(0)
	if _, err := fmt.Sscanf(string(text), "kept %d", &kept); !status.OOMKilled && (err != nil || kept > limits.MemoryBytes) {
		t.Errorf("of 150 MB in datagrams %d bytes were kept (%v, %+v), want at most %d", kept, err, status, limits.MemoryBytes)
	}
	floods := []string{"flood-connections", "flood-netlink"}
	if _, err := os.Stat("/sys/kernel/slab/file_lock_cache/total_objects"); err == nil {
		floods = append(floods, "flood-locks") // other kernels have no limit for locks
	}
	for _, flood := range floods {
		spec := prog(root, flood)
		spec.Limits = limits
		s, out := start(t, h, spec)
		if status := wait(t, s); !status.OOMKilled {
			text, _ := io.ReadAll(out)
			t.Errorf("%s ended with %+v, want OOMKilled: %s", flood, status, text)
		}
	}
}

// A sandbox that fills its /tmp, by bytes or by files, does not fill another sandbox's.
func TestDiskFill(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	neighbour, written, _ := startReady(t, h, prog(root, "writer", "/tmp/kept"))
	for _, args := range [][]string{{"fill", "/tmp/x"}, {"files", "/tmp"}, {"fill", "/dev/shm/x"}} {
		spec := prog(root, args...)
		spec.Limits.TmpBytes = 1 << 20
		if got := run(t, h, spec); !strings.Contains(got, "no space left") {
			t.Errorf("%v: %q", args, got)
		}
	}
	for _, args := range [][]string{{"fill", "/x"}, {"fill", "/dev/x"}, {"files", "/bin"}, {"fill", "/run/x"}, {"fill", "/proc/x"}} {
		if got := run(t, h, prog(root, args...)); !strings.Contains(got, "read-only file system") && !strings.Contains(got, "no such file") {
			t.Errorf("%v: %q: there is room beside /tmp and /work", args, got)
		}
	}
	if err := neighbour.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if line := readLine(t, written); line != "written" {
		t.Errorf("the neighbour: %q", line)
	}
}
