package server

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/api"
)

// leakRoutes are the route of the resources held by the engine's process.
type leakRoutes struct {
	engine Engine
}

func (s *leakRoutes) routes() []route {
	return []route{
		{"GET", "/v1/debug/leaks", s.leaks},
	}
}

// leaks answers GET /v1/debug/leaks: the resources held by the engine's process. A count that
// grows between two calls, without more work, is a leak.
func (s *leakRoutes) leaks(w http.ResponseWriter, _ *http.Request) error {
	out := api.Leaks{Holdings: []api.Holding{}, Stacks: []api.HeldStack{}}
	held, err := s.engine.Holdings()
	if err != nil {
		return err
	}
	for _, c := range held.Buffers.Classes {
		if c.Used > 0 {
			out.Holdings = append(out.Holdings, api.Holding{Kind: "buffer", Name: strconv.Itoa(c.Size), Count: int64(c.Used), Bytes: int64(c.Used) * int64(c.Size)})
		}
	}
	files, err := heldFiles()
	if err != nil {
		return err
	}
	out.Holdings = append(out.Holdings, files...)
	rollup, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return fmt.Errorf("read the engine's memory: %w", err)
	}
	out.Holdings = append(out.Holdings, heldMemory(rollup)...)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the engine's mounts: %w", err)
	}
	out.Holdings = append(out.Holdings,
		api.Holding{Kind: "goroutine", Count: int64(runtime.NumGoroutine())},
		api.Holding{Kind: "mount", Count: int64(bytes.Count(mounts, []byte{'\n'}))},
		api.Holding{Kind: "cgroup", Count: int64(held.Cgroups)},
		api.Holding{Kind: "sandbox", Count: int64(held.Sandboxes)},
	)
	if p := pprof.Lookup("fre_buffers"); p != nil {
		var text bytes.Buffer
		if err := p.WriteTo(&text, 1); err != nil {
			return err
		}
		out.Stacks = append(out.Stacks, heldStacks(text.String())...)
	}
	return reply(w, http.StatusOK, out)
}

// heldFiles counts the program's file descriptors by kind.
func heldFiles() ([]api.Holding, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("list the engine's files: %w", err)
	}
	count := map[string]int64{}
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // else the entry was the listing's own descriptor
			count[kindOfFile(target)]++
		}
	}
	var out []api.Holding
	for _, kind := range slices.SortedFunc(maps.Keys(count), cmp.Compare) {
		out = append(out, api.Holding{Kind: "fd", Name: kind, Count: count[kind]})
	}
	return out, nil
}

// kindOfFile classifies the target of a link in /proc/PID/fd (proc_pid_fd(5)).
func kindOfFile(target string) string {
	if !strings.HasPrefix(target, "/") { // socket:[1], anon_inode:[eventpoll], anon_inode:inotify, net:[1]
		kind, rest, _ := strings.Cut(target, ":")
		if kind == "anon_inode" {
			return strings.Trim(rest, "[]")
		}
		return kind
	}
	for _, k := range []struct{ prefix, kind string }{
		{"/memfd:", "memfd"}, {"/dev/", "device"}, {"/proc/", "proc"}, {"/sys/fs/cgroup/", "cgroup"}, {"/sys/", "sysfs"},
	} {
		if strings.HasPrefix(target, k.prefix) {
			return k.kind
		}
	}
	return "file"
}

// heldMemory parses /proc/PID/smaps_rollup (proc_pid_smaps(5)): a line of addresses, then lines
// with a name and a number of kB.
func heldMemory(rollup []byte) []api.Holding {
	var out []api.Holding
	for line := range strings.Lines(string(rollup)) {
		name, rest, ok := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if !ok || len(fields) != 2 || fields[1] != "kB" {
			continue
		}
		kb, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil || kb <= 0 || kb > 1<<50 {
			continue
		}
		switch name {
		case "Rss", "Pss", "Private_Dirty", "Anonymous", "Swap", "Locked":
			out = append(out, api.Holding{Kind: "memory", Name: strings.ToLower(name), Count: 1, Bytes: kb << 10})
		}
	}
	return out
}

// heldStacks parses a profile in the text format of runtime/pprof:
//
//	2 @ 0x4a 0x4b
//	#	0x49	package.function+0x2b	/file.go:12
func heldStacks(text string) []api.HeldStack {
	var out []api.HeldStack
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if before, _, ok := strings.Cut(line, " @"); ok && !strings.HasPrefix(line, "#") {
			if n, err := strconv.ParseInt(before, 10, 64); err == nil {
				out = append(out, api.HeldStack{Count: n, Frames: []string{}})
			}
			continue
		}
		fields := strings.Split(line, "\t")
		if len(out) == 0 || len(fields) < 4 || fields[0] != "#" {
			continue
		}
		function, _, _ := strings.Cut(fields[2], "+0x")
		last := &out[len(out)-1]
		last.Frames = append(last.Frames, strings.TrimSpace(function)+" "+fields[3][strings.LastIndexByte(fields[3], '/')+1:])
	}
	return out
}
