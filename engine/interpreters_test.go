package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// part commits a tree of files, given by path.
func (r *rig) part(p store.Part, files map[string][]byte) store.Part {
	r.t.Helper()
	w, err := r.store.Create()
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Abort()
	for path, content := range files {
		if err := w.File(path, 0o755, time.Unix(1, 0), bytes.NewReader(content)); err != nil {
			r.t.Fatal(err)
		}
	}
	if p.Tree, err = w.Commit(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// interpreted stores an image: testdata/fn is the interpreter, of the base environment's version,
// and the code is a file with the function's name.
func (r *rig) interpreted(name, base string, change func(*image.Config)) *store.Image {
	r.t.Helper()
	cfg := image.Config{
		Base: "python", Handler: "main.handle", Args: []string{"/bin/fn"}, Env: []string{"FRE_CHANNEL=3", "NAME=" + name},
		Protocol: image.ProtocolChannel, Tenant: "default",
		Instances: template.Instances{Isolation: template.IsolationInstance, Concurrency: 1, Max: 64, Idle: time.Minute},
		Resources: template.Resources{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 32, TmpBytes: 1 << 20, Files: 64, Timeout: time.Minute},
		Parked:    &image.ParkedInterpreter{Args: []string{"/bin/fn", "park"}, Env: []string{"FRE_CHANNEL=3"}, Mounts: []string{"/function", "/opt/python"}},
	}
	if change != nil {
		change(&cfg)
	}
	raw, err := json.Marshal(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	img, err := r.store.PutImage(r.t.Context(), store.Manifest{
		Name: name, Version: base, Config: raw,
		Parts: []store.Part{
			r.part(store.Part{Kind: "base", Name: "python", Version: base}, map[string][]byte{"bin/fn": fnBinary, "etc/base": []byte(base)}),
			r.part(store.Part{Kind: "code", Name: name, Prefix: "function"}, map[string][]byte{"name": []byte(name)}),
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return img
}

func (r *rig) deployInterpreted(name, base string, change func(*image.Config)) {
	r.t.Helper()
	if _, err := r.Deploy(r.t.Context(), name, r.interpreted(name, base, change), DeployOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// parked waits until n parked interpreters are ready for a function.
func (r *rig) parked(name string, n int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%d parked interpreters", n), func() bool {
		f, err := r.Function(name)
		return err == nil && f.Interpreters != nil && f.Interpreters.Ready >= n
	})
}

func (r *rig) roots() int {
	return len(slices.DeleteFunc(slices.Clone(r.store.Images()), func(img *store.Image) bool { return !image.IsParkedRoot(img) }))
}

// waiting lists the processes of this engine's parked interpreters.
func (r *rig) waiting() []int {
	r.t.Helper()
	parent := func(pid string) string {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return ""
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		return fields[1]
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		r.t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || parent(parent(e.Name())) != strconv.Itoa(os.Getpid()) {
			continue
		}
		if line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && string(line) == "/bin/fn\x00park\x00" {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestParkedInterpreter(t *testing.T) {
	r := open(t)
	r.deployInterpreted("a", "1", func(c *image.Config) { c.Env = append(c.Env, "GREETING=hello") })
	r.parked("a", 2)
	if s := r.Sandboxes(true); len(s) != 0 {
		t.Errorf("parked interpreters are listed: %+v", s)
	}
	look := func(query, want string) *Response {
		t.Helper()
		got, resp, err := r.look("a", query)
		if err != nil || got != want {
			t.Fatalf("%s: got %q, %v; want %q", query, got, err, want)
		}
		return resp
	}
	first := look("env=GREETING", "hello")
	if first.StartKind != StartInterpreter || !first.Cold {
		t.Errorf("the first start was %s, cold %v; want interpreter", first.StartKind, first.Cold)
	}
	second := look("dir=1", "/function")
	if second.StartKind != StartWarm || second.Cold || second.Instance != first.Instance {
		t.Errorf("the second event: %+v; want the same instance warm", second)
	}
	look("env=FRE_CONCURRENCY", "1")
	look("file=name", "a")
	look("file=/etc/base", "1")
	look("write=/work/x", "")
	running := r.Sandboxes(false)
	if len(running) != 1 || running[0].Function != "a" || running[0].ID != first.Instance || running[0].PID == 0 {
		t.Errorf("lists show %+v", running)
	}
	r.mustCall("a", "/print", "x", "x")
	eventually(t, "the line in the log", func() bool {
		found := false
		err := r.Logs(t.Context(), "a", live.LogOptions{Tail: -1}, func(l live.LogLine) error {
			found = found || l.Text == "hello log" && l.Sandbox == first.Instance && l.Stream == "stdout"
			return nil
		})
		return err == nil && found
	})
	r.parked("a", 2)
}

// A tenant's files belong to uid 1000 on disk and inside, after any kind of start. No other user of
// the host can reach them.
func TestWorkOnDisk(t *testing.T) {
	r := open(t)
	r.deployInterpreted("a", "1", nil)
	r.deploy("direct", nil)
	r.parked("a", 2)
	for _, name := range []string{"a", "direct"} {
		resp, err := r.Invoke(t.Context(), name, &Request{Path: "/look", Query: "write=/work/" + name})
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(r.state, "tenants/default/work", name))
		if err != nil {
			t.Fatal(err)
		}
		if sys := st.Sys().(*syscall.Stat_t); sys.Uid != live.FunctionUID || sys.Gid != live.FunctionUID {
			t.Errorf("%s by a %s start belongs to %d:%d on disk", name, resp.StartKind, sys.Uid, sys.Gid)
		}
	}
	st, err := os.Stat(filepath.Join(r.state, "tenants"))
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("tenants/ has mode %v, %v; want root's alone", st.Mode(), err)
	}
}

// Functions on one base share parked interpreters, but see nothing else of each other.
func TestInterpretersAreShared(t *testing.T) {
	r := open(t)
	fresh := func(c *image.Config) { c.Instances.Isolation = template.IsolationEvent }
	r.deployInterpreted("a", "1", fresh)
	r.deployInterpreted("b", "1", func(c *image.Config) { fresh(c); c.Tenant = "other" })
	r.parked("b.other", 2)
	if n := r.roots(); n != 1 {
		t.Errorf("%d roots for one base", n)
	}
	seen := map[string]bool{}
	for range 4 {
		for _, name := range []string{"a", "b.other"} {
			r.parked(name, 2)
			resp := r.mustCall(name, "/look?", "", "")
			if resp.StartKind != StartInterpreter || seen[resp.Instance] {
				t.Errorf("%s was answered by %s, a %s start; seen before: %v", name, resp.Instance, resp.StartKind, seen[resp.Instance])
			}
			seen[resp.Instance] = true
		}
	}
	a, _, err := r.look("a", "file=name&write=/work/mine")
	if err != nil || a != "a" {
		t.Errorf("a's code is %q, %v", a, err)
	}
	if b, _, err := r.look("b.other", "file=name"); err != nil || b != "b" {
		t.Errorf("b's code is %q, %v", b, err)
	}
	if _, _, err := r.look("b.other", "file=/work/mine"); err == nil {
		t.Error("another tenant's file was read")
	}
}

func (r *rig) look(name, query string) (string, *Response, error) {
	resp, err := r.Invoke(r.t.Context(), name, &Request{Path: "/look", Query: query})
	if err != nil {
		return "", nil, err
	}
	got := new(bytes.Buffer)
	_, err = got.ReadFrom(resp.Body)
	return got.String(), resp, errors.Join(err, resp.Body.Close())
}

// A burst beyond the pool of parked interpreters starts the rest in other ways.
func TestInterpreterBurst(t *testing.T) {
	r := open(t)
	r.deployInterpreted("a", "1", func(c *image.Config) { c.Instances.Isolation = template.IsolationEvent })
	r.parked("a", 2)
	const full = 1 << 50
	r.interpreters.parked.Add(full) // no taken interpreter is replaced during the burst
	defer r.interpreters.parked.Add(-full)
	kinds := make(chan sandbox.StartKind, 16)
	var wg sync.WaitGroup
	for range cap(kinds) {
		wg.Go(func() {
			_, resp, err := r.call(t.Context(), "a", "/", "x")
			if err != nil {
				t.Error(err)
				return
			}
			kinds <- resp.StartKind
		})
	}
	wg.Wait()
	close(kinds)
	count := map[sandbox.StartKind]int{}
	for kind := range kinds {
		count[kind]++
	}
	if count[StartInterpreter] < 2 || count[StartInterpreter] == cap(kinds) || count[StartWarm] > 0 {
		t.Errorf("starts %v; want two or more of parked interpreters, and others", count)
	}
}

// TestInterpretersAmongStarts: continuous starts of other functions do not keep the engine from
// parking new interpreters.
func TestInterpretersAmongStarts(t *testing.T) {
	r := open(t)
	r.deployInterpreted("a", "1", fresh)
	r.deploy("busy", stdio)
	r.parked("a", 2)
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	for range 4 {
		others.Go(func() {
			for ctx.Err() == nil {
				if _, _, err := r.call(ctx, "busy", "/", "x"); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		r.mustCall("a", "/", "x", "x")
	}
	r.parked("a", 2)
}

func TestInterpreterDies(t *testing.T) {
	r := open(t)
	r.deployInterpreted("a", "1", nil)
	r.parked("a", 2)
	before := r.waiting()
	if len(before) != 2 {
		t.Fatalf("parked are %v, want two processes", before)
	}
	if err := unix.Kill(before[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another in its place", func() bool {
		now := r.waiting()
		return r.interpreters.died.Load() == 1 && len(now) == 2 && !slices.Contains(now, before[0])
	})
	if resp := r.mustCall("a", "/", "x", "x"); resp.StartKind != StartInterpreter {
		t.Errorf("a %s start", resp.StartKind)
	}
}

func TestInterpreterRedeployAndRemove(t *testing.T) {
	r := open(t)
	r.deployInterpreted("a", "1", func(c *image.Config) { c.Instances.Idle = time.Second }) // instances rest for one second only
	r.parked("a", 2)
	old := r.waiting()
	r.deployInterpreted("a", "2", nil) // on a rebuilt base environment
	r.parked("a", 2)
	if got, resp, err := r.look("a", "file=/etc/base"); err != nil || got != "2" || resp.StartKind != StartInterpreter {
		t.Errorf("after the redeployment: base %q, %v, %+v", got, err, resp)
	}
	eventually(t, "the old base's parked interpreters and root to go", func() bool {
		return r.roots() == 1 && !slices.ContainsFunc(r.waiting(), func(pid int) bool { return slices.Contains(old, pid) })
	})
	for _, img := range r.store.Images() {
		if _, err := r.RemoveImage(t.Context(), string(img.Digest), build.RemoveOptions{}); image.IsParkedRoot(img) && !errors.Is(err, store.ErrInUse) {
			t.Errorf("the root of parked interpreters was removed: %v", err)
		}
	}
	if err := r.RemoveFunction(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing to be parked", func() bool { return r.roots() == 0 && len(r.waiting()) == 0 })
}

// Without a suitable parked interpreter the instance starts its interpreter itself.
func TestWithoutInterpreter(t *testing.T) {
	for name, test := range map[string]struct {
		cfg    InterpreterConfig
		change func(*image.Config)
		parks  bool
	}{
		"off":               {cfg: InterpreterConfig{Off: true}},
		"of another sort":   {change: func(c *image.Config) { c.Parked = nil }},
		"does not park":     {change: func(c *image.Config) { c.Parked.Env = append(c.Parked.Env, "FN_PARK=fail") }},
		"no interpreter":    {change: func(c *image.Config) { c.Parked.Args = []string{"/nowhere"} }},
		"long environment":  {change: func(c *image.Config) { c.Env = append(c.Env, "LONG="+strings.Repeat("\x01", 50<<10)) }},
		"too little memory": {change: func(c *image.Config) { c.Resources.MemoryBytes = 6 << 20 }, parks: true},
		"no mount point":    {change: func(c *image.Config) { c.Parked.Mounts = []string{"/function/name"} }, parks: true},
	} {
		t.Run(name, func(t *testing.T) {
			fretest.RequireRoot(t)
			fretest.CheckLeaks(t)
			r := &rig{t: t, state: t.TempDir()}
			r.start(Config{Interpreters: test.cfg})
			r.deployInterpreted("a", "1", test.change)
			if test.parks {
				r.parked("a", 2)
				r.interpreters.mu.Lock()
				for _, p := range r.interpreters.pools { // fn itself is small
					p.charged.Store(6 << 20)
				}
				r.interpreters.mu.Unlock()
			}
			if resp := r.mustCall("a", "/", "x", "x"); resp.StartKind == StartInterpreter || resp.StartKind == StartWarm {
				t.Errorf("a %s start", resp.StartKind)
			}
		})
	}
}

func TestInterpreterMemoryBound(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	r := &rig{t: t, state: t.TempDir()}
	r.start(Config{Interpreters: InterpreterConfig{MemoryBytes: 1 << 10}})
	r.deployInterpreted("a", "1", nil)
	r.parked("a", 1) // the engine does not know yet how much memory the first one takes
	for range 3 {
		r.mustCall("a", "/", "x", "x")
	}
	if f, err := r.Function("a"); err != nil || f.Interpreters.Bytes == 0 || r.interpreters.parked.Load() > 2*f.Interpreters.Bytes {
		t.Errorf("%d bytes parked, %v; want those of one parked interpreter", r.interpreters.parked.Load(), err)
	}
}

// A function that fails to load gives the same error in a parked interpreter as in an ordinary
// start.
func TestInterpreterLoadFails(t *testing.T) {
	r := open(t)
	r.deployInterpreted("a", "1", func(c *image.Config) { c.Env = append(c.Env, "FN_LOAD=fail") })
	r.parked("a", 2)
	_, _, err := r.call(t.Context(), "a", "/", "")
	var crash *CrashError
	if !errors.As(err, &crash) || crash.Status.Code != 3 {
		t.Errorf("got %v, want the exit status of the load", err)
	}
	eventually(t, "its words in the log", func() bool {
		found := false
		err := r.Logs(t.Context(), "a", live.LogOptions{Tail: -1}, func(l live.LogLine) error {
			found = found || l.Text == "cannot load"
			return nil
		})
		return err == nil && found
	})
}

// The next engine finds the root, and removes a root that no function needs.
func TestInterpretersAfterRestart(t *testing.T) {
	r := open(t)
	r.deployInterpreted("a", "1", nil)
	r.parked("a", 2)
	r.stop()
	r.start(Config{})
	r.parked("a", 2)
	if resp := r.mustCall("a", "/", "x", "x"); resp.StartKind != StartInterpreter || r.roots() != 1 {
		t.Errorf("after a restart: a %s start, %d roots", resp.StartKind, r.roots())
	}
	r.stop()
	r.start(Config{Interpreters: InterpreterConfig{Off: true}})
	eventually(t, "the root to go", func() bool { return r.roots() == 0 })
}

// TestForeignInterpreters: parked interpreters come from a Builder only: an image from elsewhere
// starts its interpreter itself, until a user vouches for the image.
func TestForeignInterpreters(t *testing.T) {
	r := open(t)
	img := r.interpreted("a", "1", nil)
	defer r.store.Hold()()
	if err := r.store.RemoveImage(t.Context(), img.Digest); err != nil {
		t.Fatal(err)
	}
	manifest := img.Manifest
	for _, foreign := range []bool{true, false} {
		img, err := r.store.TakeImage(t.Context(), manifest, foreign)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Deploy(t.Context(), "a", img, DeployOptions{}); err != nil {
			t.Fatal(err)
		}
		if f, err := r.Function("a"); err != nil || (f.Interpreters == nil) != foreign {
			t.Errorf("foreign: %v; its parked interpreters: %+v, %v", foreign, f.Interpreters, err)
		}
	}
}
