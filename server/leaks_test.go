package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/api"
)

func TestKindOfFile(t *testing.T) {
	for target, want := range map[string]string{
		"socket:[12]": "socket", "pipe:[1]": "pipe", "anon_inode:[eventpoll]": "eventpoll", "anon_inode:inotify": "inotify",
		"net:[4026531840]": "net", "/memfd:fre-ring (deleted)": "memfd", "/dev/null": "device", "/proc/1/ns": "proc",
		"/sys/fs/cgroup/pids/fre-1/tasks": "cgroup", "/sys/kernel/x": "sysfs", "/var/lib/fre/store/fre.db": "file", "": "",
	} {
		if got := kindOfFile(target); got != want {
			t.Errorf("%q: %q, want %q", target, got, want)
		}
	}
}

func TestHeldMemory(t *testing.T) {
	got := heldMemory([]byte("00400000-7fff [rollup]\nRss:      1024 kB\nPss:  x kB\nAnonymous:   12 kB\nSwap:   0 kB\nOther: 1 kB\nRss:"))
	want := []api.Holding{{Kind: "memory", Name: "rss", Count: 1, Bytes: 1 << 20}, {Kind: "memory", Name: "anonymous", Count: 1, Bytes: 12 << 10}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

const stacks = "fre_buffers profile: total 3\n2 @ 0x1 0x2\n#\t0x1\tengine.readHead+0x2b\t/src/engine/head.go:12\n" +
	"#\t0x2\tengine.(*event).stdio+0x1\t/src/engine/invoke.go:395\n\n1 @ 0x3\n"

func TestHeldStacks(t *testing.T) {
	want := []api.HeldStack{{Count: 2, Frames: []string{"engine.readHead head.go:12", "engine.(*event).stdio invoke.go:395"}}, {Count: 1, Frames: []string{}}}
	if diff := cmp.Diff(want, heldStacks(stacks)); diff != "" {
		t.Error(diff)
	}
}

// No text of /proc or of a profile crashes the parsers.
func FuzzHeld(f *testing.F) {
	f.Add(stacks)
	f.Add("Rss: 1 kB\nRss: 99999999999999999999 kB\n")
	f.Add("anon_inode:[")
	f.Add("# @\n1 @\n#\t\t\t")
	f.Fuzz(func(t *testing.T, text string) {
		kindOfFile(text)
		for _, h := range heldMemory([]byte(text)) {
			if h.Bytes <= 0 {
				t.Errorf("%+v", h)
			}
		}
		heldStacks(text)
	})
}
