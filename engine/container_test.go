package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// ordinary stores an image of testprog that resembles an ordinary image: users, owners, an
// environment.
func (r *rig) ordinary(name string) *store.Image {
	r.t.Helper()
	w, err := r.store.Create()
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Abort()
	prog, err := os.Open(filepath.Join(fretest.Rootfs(r.t), "bin/prog"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer prog.Close()
	at := time.Unix(1, 0)
	err = errors.Join(
		w.File("bin/prog", 0o755, at, prog),
		w.File("etc/passwd", 0o644, at, strings.NewReader("root:x:0:0:root:/root:/bin/sh\nserver:x:33:34::/srv:/bin/sh\n")),
		w.File("etc/group", 0o644, at, strings.NewReader("root:x:0:\nserver:x:34:\nextra:x:35:server\n")),
		w.Symlink("sbin/init", "/bin/prog", at),
		w.SetOwner(33, 34),
		w.Directory("srv", 0o750, at),
		w.File("srv/own", 0o600, at, strings.NewReader("own\n")))
	if err != nil {
		r.t.Fatal(err)
	}
	tree, err := w.Commit(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	args := []string{"/bin/prog", "sleep"}
	cfg := image.Config{
		Args: args, Env: []string{"FROM=image", "PATH=/sbin:/bin"}, Labels: map[string]string{"of": "image"},
		Container: &image.Container{Cmd: args},
	}
	return r.put(name, cfg, []store.Part{{Kind: "layer", Name: name, Tree: tree}})
}

// attach runs a container and returns its output; stdin may be nil.
func (r *rig) attach(id string, stdin io.Reader) (stdout, stderr string) {
	r.t.Helper()
	var out, errs bytes.Buffer
	a, err := r.Attach(id, container.AttachOptions{Stdin: stdin, Stdout: &out, Stderr: &errs})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.StartContainer(r.t.Context(), id); err != nil {
		a.Close()
		r.t.Fatal(err)
	}
	if err := a.Serve(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return out.String(), errs.String()
}

func (r *rig) create(cfg container.Config) *container.Container {
	r.t.Helper()
	if cfg.Image == "" {
		cfg.Image = "ordinary"
	}
	c, err := r.CreateContainer(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) exited(id string) *container.Container {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	c, err := r.WaitContainer(ctx, id, container.WaitNotRunning)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func prog(args ...string) []string { return append([]string{"prog"}, args...) }

// TestContainer: the files of a container survive until the next start, the image stays unchanged,
// and removal leaves nothing behind.
func TestContainer(t *testing.T) {
	r := open(t)
	img := r.ordinary("ordinary")
	c := r.create(container.Config{Name: "web", Cmd: prog("write", "/srv/new", "kept"), Labels: map[string]string{"a": "b"}})
	if c.State != live.StateCreated || len(c.ID) != 64 || c.Config.Labels["of"] != "image" || c.Config.Labels["a"] != "b" {
		t.Errorf("created %+v", c)
	}
	if stdout, stderr := r.attach("web", nil); stdout+stderr != "" {
		t.Errorf("wrote %q, %q", stdout, stderr)
	}
	c = r.exited(c.ID[:6])
	if c.State != live.StateExited || container.ExitCode(c.Exit) != 0 || c.Started.IsZero() || c.Finished.Before(c.Started) {
		t.Errorf("after its end %+v (%+v)", c, c.Exit)
	}
	if _, err := os.Stat(filepath.Join(r.store.Rootfs(img.Digest), "srv/new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the image has the container's file: %v", err)
	}
	if _, err := r.RemoveImage(t.Context(), "ordinary", build.RemoveOptions{}); !errors.Is(err, store.ErrInUse) {
		t.Errorf("remove its image: %v, want ErrInUse", err)
	}
	// Each step runs on the layer of the step before.
	reader := r.create(container.Config{Cmd: prog("orders"), OpenStdin: true, StdinOnce: true})
	for i, step := range []struct{ stdin, want string }{
		{"write /first x\nstat /srv/own\nappend /srv/own more\n", "> ready\n> ok\n100600 33 34\n> ok\n> ok\n"},
		{"cat /first\ncat /srv/own\nremove /first\nhost\ncat /etc/hosts\n", "> ready\nx> ok\nown\nmore> ok\n> ok\n" + reader.ID[:12] + "\n> ok\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + reader.ID[:12] + "\n> ok\n"},
		{"cat /first\n", "> ready\n> open /first: no such file or directory\n"},
	} {
		if got, _ := r.attach(reader.ID, strings.NewReader(step.stdin)); got != step.want {
			t.Errorf("run %d wrote %q, want %q", i, got, step.want)
		}
		r.exited(reader.ID)
	}
	// Without its program the container cannot be started; lists and the record show the same
	// error.
	if got, _ := r.attach(reader.ID, strings.NewReader("remove /bin/prog\n")); got != "> ready\n> ok\n" {
		t.Errorf("its program not removed: %q", got)
	}
	r.exited(reader.ID)
	if err := r.StartContainer(t.Context(), reader.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("start without a program: %v", err)
	}
	for _, s := range r.Sandboxes(true) {
		c, err := r.Container(s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.Exit, s.Exit); diff != "" || s.ID == reader.ID && container.ExitCode(s.Exit) != 127 {
			t.Errorf("%s shows its exit as %+v (-record +list):\n%s", s.Name, s.Exit, diff)
		}
		if made := container.Of(s); made == nil || made.ID != s.ID || made.State != live.StateCreated {
			t.Errorf("%s was made as %+v", s.Name, made)
		}
	}
	var names []string // newest first
	for _, s := range r.Sandboxes(true) {
		names = append(names, s.Name+" "+string(s.State))
	}
	if diff := cmp.Diff([]string{reader.Config.Name + " exited", "web exited"}, names); diff != "" {
		t.Errorf("sandboxes (-want +got):\n%s", diff)
	}
	if err := r.RenameContainer("web", "site"); err != nil {
		t.Fatal(err)
	}
	if err := r.RenameContainer(reader.ID, "site"); !errors.Is(err, ErrNameTaken) {
		t.Errorf("rename to a name that is taken: %v", err)
	}
	for _, ref := range []string{"site", reader.Config.Name} {
		if err := r.RemoveContainer(ref, false); err != nil {
			t.Error(err)
		}
	}
	if all, boxes := r.Containers(true), r.Sandboxes(true); len(all)+len(boxes) > 0 {
		t.Errorf("left: %v, %v", all, boxes)
	}
	if left, err := os.ReadDir(filepath.Join(r.state, "containers")); err != nil || len(left) != 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
	if _, err := r.RemoveImage(t.Context(), "ordinary", build.RemoveOptions{}); err != nil {
		t.Error(err)
	}
}

// TestContainerPreparedLayer: if making a layer takes time, the first start of a container takes a
// layer made ahead. A container with its own limit does not.
func TestContainerPreparedLayer(t *testing.T) {
	r := open(t)
	if r.volumes.Kind() != volume.Image {
		if r.scratches != nil {
			t.Error("layers are made ahead that take no time")
		}
		return
	}
	r.ordinary("ordinary")
	run := func(cfg container.Config) uint64 {
		t.Helper()
		cfg.Cmd = prog("write", "/new", "x")
		c := r.create(cfg)
		if _, stderr := r.attach(c.ID, nil); stderr != "" {
			t.Error(stderr)
		}
		if c = r.exited(c.ID); c.Scratch.Bytes < 4096 {
			t.Errorf("it has written %+v", c.Scratch)
		}
		return inode(t, filepath.Join(r.state, "containers", c.ID, "scratch.img"))
	}
	run(container.Config{})
	var ready []uint64
	eventually(t, "layers to be made ahead", func() bool {
		n, want := r.scratches.Len()
		return n > 0 && n == want
	})
	prepared, err := filepath.Glob(filepath.Join(r.state, "removed", "prepared-*.img"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range prepared {
		ready = append(ready, inode(t, name))
	}
	if own := run(container.Config{ScratchBytes: 64 << 20}); slices.Contains(ready, own) {
		t.Error("one with a limit of its own took a layer of another size")
	}
	if own := run(container.Config{}); !slices.Contains(ready, own) {
		t.Errorf("it has none of the %d layers that were ready", len(ready))
	}
	r.stop()
	if left, err := os.ReadDir(filepath.Join(r.state, "removed")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func inode(t *testing.T, name string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestContainerConfig: the program finds the settings of its container's configuration.
func TestContainerConfig(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	for name, test := range map[string]struct {
		cfg  container.Config
		want string // a part of the output
		code int
	}{
		"exit status":     {container.Config{Cmd: prog("exit", "7")}, "", 7},
		"by a link":       {container.Config{Cmd: []string{"init", "args", "a", "b"}}, "a|b\n", 0},
		"entry point":     {container.Config{Entrypoint: prog("args"), Cmd: []string{"x"}}, "x\n", 0},
		"no entry point":  {container.Config{Entrypoint: []string{""}, Cmd: prog("args", "y")}, "y\n", 0},
		"environment":     {container.Config{Cmd: prog("env"), Env: []string{"A=1", "FROM=us"}, Hostname: "h"}, "PATH=/sbin:/bin|HOSTNAME=h|HOME=/root|FROM=us|A=1|FRE_CPUS=", 0},
		"user":            {container.Config{Cmd: prog("ids"), User: "server"}, "33 33 34 34 1\n", 0},
		"groups":          {container.Config{Cmd: prog("groups"), User: "server"}, "[35]\n", 0},
		"home":            {container.Config{Cmd: prog("env"), User: "33"}, "HOME=/srv|", 0},
		"root":            {container.Config{Cmd: prog("ids")}, "0 0 0 0 1\n", 0},
		"directory":       {container.Config{Cmd: prog("cwd"), Dir: "/made/for/it"}, "/made/for/it\n", 0},
		"relative":        {container.Config{Cmd: []string{"./prog", "cwd"}, Dir: "/bin"}, "/bin\n", 0},
		"left out":        {container.Config{Cmd: prog("env"), Unset: []string{"FROM", "HOME"}, Hostname: "h"}, "PATH=/sbin:/bin|HOSTNAME=h|FRE_CPUS=", 0},
		"read-only":       {container.Config{Cmd: prog("write", "/x", "y"), ReadOnly: true}, "read-only file system", 100},
		"capability":      {container.Config{Cmd: prog("chown", "33", "/etc")}, "", 0},
		"none of them":    {container.Config{Cmd: prog("chown", "33", "/etc"), CapDrop: []string{"all"}}, "operation not permitted", 100},
		"all but one":     {container.Config{Cmd: prog("chown", "33", "/etc"), CapDrop: []string{"CAP_CHOWN"}}, "operation not permitted", 100},
		"one of them":     {container.Config{Cmd: prog("chown", "33", "/etc"), CapDrop: []string{"ALL"}, CapAdd: []string{"chown"}}, "", 0},
		"one nobody has":  {container.Config{Cmd: prog("chown", "33", "/etc"), CapDrop: []string{"NET_RAW"}}, "", 0},
		"further groups":  {container.Config{Cmd: prog("groups"), User: "server", Groups: []string{"root", "7"}}, "[0 7 35]\n", 0},
		"work":            {container.Config{Cmd: prog("write", "/work/x", "y"), Work: container.WorkWrite}, "", 0},
		"work, read-only": {container.Config{Cmd: prog("write", "/work/x", "y"), Work: container.WorkReadOnly}, "read-only file system", 100},
		"no work":         {container.Config{Cmd: prog("write", "/work/x", "y")}, "", 0}, // written to the container's own root
		"pids":            {container.Config{Cmd: prog("bomb"), Limits: sandbox.Limits{Pids: 16}}, "", 100},
		"no network":      {container.Config{Cmd: prog("interfaces")}, "lo true\n", 0},
		"terminal":        {container.Config{Cmd: prog("readlink", "/proc/self/fd/1"), TTY: true}, "/0\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.create(test.cfg)
			stdout, stderr := r.attach(c.ID, nil)
			if got := stdout + stderr; !strings.Contains(got, test.want) {
				t.Errorf("wrote %q, want a part %q", got, test.want)
			}
			if c = r.exited(c.ID); container.ExitCode(c.Exit) != test.code {
				t.Errorf("ended with %+v, want %d", c.Exit, test.code)
			}
			var logged strings.Builder
			if err := r.ContainerLogs(t.Context(), c.ID, live.LogOptions{Tail: -1}, func(l live.LogLine) error {
				logged.WriteString(l.Text)
				return nil
			}); err != nil || !strings.Contains(logged.String(), strings.TrimSpace(test.want)) {
				t.Errorf("log %q, %v, want a part %q", logged.String(), err, test.want)
			}
		})
	}
	// All files in a tenant's /work belong to the tenant.
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(r.state, "tenants/default/work/x"), &st); err != nil || st.Uid != live.FunctionUID || st.Gid != live.FunctionUID {
		t.Errorf("/work/x belongs to %d:%d (%v)", st.Uid, st.Gid, err)
	}
}

// TestContainerImage: an ordinary image says how it runs, and a container can override each
// setting.
func TestContainerImage(t *testing.T) {
	r := open(t)
	parts := r.ordinary("ordinary").Parts
	r.put("server", image.Config{Env: []string{"PATH=/bin"}, Container: &image.Container{
		Entrypoint: prog("orders"), Cmd: []string{"unused"}, User: "server:root", WorkingDir: "srv", StopSignal: "QUIT",
		Labels: map[string]string{"a": "image", "b": "image"},
	}}, parts)
	r.put("function", image.Config{Protocol: image.ProtocolStdio, Args: prog("x")}, parts)
	r.put("base", image.Config{Protocol: image.ProtocolNone, Args: prog("x")}, parts)
	for name, test := range map[string]struct {
		cfg  container.Config
		want []string // command line, user, directory, signal, labels a and b
	}{
		"a function":    {container.Config{Image: "function"}, []string{"prog x", "1000:1000", "/function", "terminated", "", ""}},
		"a base":        {container.Config{Image: "base"}, []string{"prog x", "", "/", "terminated", "", ""}},
		"as it says":    {container.Config{}, []string{"prog orders unused", "server:root", "/srv", "quit", "image", "image"}},
		"command":       {container.Config{Cmd: []string{"x"}}, []string{"prog orders x", "server:root", "/srv", "quit", "image", "image"}},
		"entry point":   {container.Config{Entrypoint: []string{"/y"}}, []string{"/y", "server:root", "/srv", "quit", "image", "image"}},
		"no entry":      {container.Config{Entrypoint: []string{""}, Cmd: []string{"z"}}, []string{"z", "server:root", "/srv", "quit", "image", "image"}},
		"all otherwise": {container.Config{User: "0", Dir: "/", StopSignal: unix.SIGHUP, Labels: map[string]string{"a": "own"}}, []string{"prog orders unused", "0", "/", "hangup", "own", "image"}},
	} {
		if test.cfg.Image == "" {
			test.cfg.Image = "server"
		}
		c := r.create(test.cfg)
		got := []string{strings.Join(c.Args, " "), c.Config.User, c.Config.Dir, c.Config.StopSignal.String(), c.Config.Labels["a"], c.Config.Labels["b"]}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	c := r.create(container.Config{Image: "server", OpenStdin: true, StdinOnce: true})
	if got, _ := r.attach(c.ID, strings.NewReader("ids\ncat own\n")); got != "> ready\n33 33 0 0 1\n> ok\nown\n> ok\n" {
		t.Errorf("it wrote %q", got)
	}
	// Run executes one command without a container to create and remove.
	stdout, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	result, err := r.Run(t.Context(), container.RunRequest{Image: "server", Args: []string{"unused"}, Stdout: w, Stderr: w})
	_ = w.Close()
	said, _ := io.ReadAll(stdout)
	if err != nil || result.Code != 0 || string(said) != "> ready\n" {
		t.Errorf("run: %+v, %v, it wrote %q", result, err, said)
	}
	for _, s := range r.Sandboxes(true) {
		if container.Of(s) == nil && s.Limits.MemoryBytes == 0 {
			t.Errorf("the run is listed without limits: %+v", s)
		}
	}
	for s, want := range map[string]unix.Signal{"9": 9, "SIGTERM": 15, "term": 15, "64": 64, "SIGRTMIN+3": 37, "rtmax-1": 63, "RTMIN": 34, "RTMIN-1": 0, "RTMAX+1": 0, "RTMIN+x": 0, "0": 0, "65": 0, "SIGNONE": 0, "": 0} {
		if got, ok := container.ParseSignal(s); ok != (want != 0) || ok && got != want {
			t.Errorf("ParseSignal(%q) = %d, %t, want %d", s, got, ok, want)
		}
	}
}

// TestContainerRefused: the engine refuses an impossible container with the reason, and keeps
// nothing of it.
func TestContainerRefused(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	r.create(container.Config{Name: "taken"})
	for name, test := range map[string]struct {
		cfg  container.Config
		want string
	}{
		"image":     {container.Config{Image: "missing"}, "file does not exist"},
		"name":      {container.Config{Name: "taken"}, "taken"},
		"bad name":  {container.Config{Name: "-x"}, "not a container's name"},
		"command":   {container.Config{Entrypoint: []string{""}}, "name a command"},
		"user":      {container.Config{User: "nobody"}, "no user"},
		"tenant":    {container.Config{Tenant: "A/.."}, "tenant's name"},
		"directory": {container.Config{Dir: "x"}, "absolute"},
		"long name": {container.Config{Dir: "/" + strings.Repeat("x", 256)}, "not a valid path"},
		"long path": {container.Config{Dir: strings.Repeat("/x", 2048)}, "not a valid path"},
		"NUL byte":  {container.Config{Cmd: []string{"true", "a\x00"}}, "NUL byte"},
		"variable":  {container.Config{Env: []string{"x"}}, "NAME=value"},
		"host name": {container.Config{Hostname: "a b"}, "host name"},
		"host":      {container.Config{Network: template.NetworkHost}, "does not allow"},
		"network":   {container.Config{Network: "bridge"}, "unknown"},
		"memory":    {container.Config{Limits: sandbox.Limits{MemoryBytes: 1 << 50}}, "memory"},
		"negative":  {container.Config{Limits: sandbox.Limits{Pids: -1}}, "negative"},
		"work":      {container.Config{Work: "yes"}, "neither"},
		"signal":    {container.Config{StopSignal: 99}, "does not exist"},
		"stdin":     {container.Config{StdinOnce: true}, "open_stdin"},
		"group":     {container.Config{Groups: []string{"nobody"}}, "no group"},
		"no power":  {container.Config{CapDrop: []string{"CHMOD"}}, "no capability"},
		"power":     {container.Config{CapAdd: []string{"SYS_ADMIN"}}, "none but CHOWN"},
		"all power": {container.Config{CapAdd: []string{"ALL"}}, "none but CHOWN"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.cfg.Image == "" {
				test.cfg.Image = "ordinary"
			}
			c, err := r.CreateContainer(t.Context(), test.cfg)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, %v; want an error with %q", c, err, test.want)
			}
		})
	}
	if all := r.Containers(true); len(all) != 1 {
		t.Errorf("%d containers are left, want the one", len(all))
	}
	c := r.create(container.Config{Cmd: []string{"no-such-program"}})
	if err := r.StartContainer(t.Context(), c.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("start without a program: %v", err)
	}
	if c, err := r.Container(c.ID); err != nil || c.State != live.StateCreated || container.ExitCode(c.Exit) != 127 || !strings.Contains(c.Error, "no-such-program") {
		t.Errorf("after that: %+v, %v", c, err)
	}
	gone := r.create(container.Config{Cmd: []string{"/no-such-program"}, AutoRemove: true})
	if err := r.StartContainer(t.Context(), gone.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("start without a program: %v", err)
	}
	if _, err := r.Container(gone.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that could not start and is to be removed is there: %v", err)
	}
}

// TestContainerStop: a container ends by the stop signal or by a kill, and is removed by force or
// automatically. Each waiter sees the expected state.
func TestContainerStop(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	trap := r.create(container.Config{Cmd: prog("trap")})
	next, err := r.AwaitContainer(trap.ID, container.WaitNextExit)
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"stop": r.Stop(t.Context(), trap.ID, 0), "kill": r.Kill(trap.ID), "signal": r.Signal(trap.ID[:8], unix.SIGHUP),
		"processes": func() error { _, err := r.Processes(trap.ID); return err }(),
	} {
		if !errors.Is(err, live.ErrContainerStopped) {
			t.Errorf("%s of a container that has ended: %v, want ErrContainerStopped", what, err)
		}
	}
	if err := r.StopContainer(t.Context(), trap.ID, live.StopOptions{}); !errors.Is(err, live.ErrContainerStopped) {
		t.Errorf("stop one that never ran: %v", err)
	}
	if err := r.StartContainer(t.Context(), trap.ID); err != nil {
		t.Fatal(err)
	}
	if list := r.Sandboxes(false); len(list) != 1 || list[0].PID == 0 || slices.Contains(list[0].Defences, "capabilities") || slices.Contains(list[0].Defences, "read-only root") || !slices.Contains(list[0].Defences, "seccomp") {
		t.Errorf("it is listed as %+v", list)
	}
	if err := r.StartContainer(t.Context(), trap.ID); !errors.Is(err, container.ErrContainerRunning) {
		t.Errorf("start it twice: %v", err)
	}
	if err := r.RemoveContainer(trap.ID, false); !errors.Is(err, container.ErrContainerRunning) {
		t.Errorf("remove it while it runs: %v", err)
	}
	// The program traps SIGTERM after it has written "ready".
	if err := r.ContainerLogs(t.Context(), trap.ID, live.LogOptions{Tail: -1, Follow: true}, func(l live.LogLine) error {
		if l.Text == "ready" {
			return r.StopContainer(t.Context(), trap.ID, live.StopOptions{Grace: time.Minute})
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if c, err := next(t.Context()); err != nil || c.State != live.StateExited || container.ExitCode(c.Exit) != 0 {
		t.Errorf("stopped: %+v, %v", c, err)
	}

	sleep := r.create(container.Config{AutoRemove: true})
	removed, err := r.AwaitContainer(sleep.ID, container.WaitRemoved)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(t.Context(), sleep.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.SignalContainer(sleep.ID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if c, err := removed(t.Context()); err != nil || container.ExitCode(c.Exit) != 137 {
		t.Errorf("killed: %+v, %v, want 137", c, err)
	}
	if _, err := r.Container(sleep.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}

	forced := r.create(container.Config{})
	if err := r.StartContainer(t.Context(), forced.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.RemoveContainer(forced.ID, true); err != nil {
		t.Error(err)
	}

	// The engine's end completes some waits; all other waits end with ErrClosed.
	waits := map[string]func(context.Context) (*container.Container, error){}
	for _, cfg := range []container.Config{{Name: "runs", AutoRemove: true}, {Name: "rests"}} {
		if waits[cfg.Name], err = r.AwaitContainer(r.create(cfg).ID, container.WaitRemoved); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.StartContainer(t.Context(), "runs"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { _, err := waits["rests"](t.Context()); ended <- err }()
	r.stop()
	if c, err := waits["runs"](t.Context()); err != nil || container.ExitCode(c.Exit) != 137 {
		t.Errorf("killed with its engine: %+v, %v, want 137", c, err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("wait for what does not come: %v, want ErrClosed", err)
	}
}

// TestContainerStreams: a container passes 100 MB to two clients, complete and in order, while a
// third client comes and goes.
func TestContainerStreams(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	c := r.create(container.Config{Cmd: prog("copy"), OpenStdin: true, StdinOnce: true})
	const size = 100 << 20
	source := rand.NewChaCha8([32]byte{1})
	sent, got := sha256.New(), [2]string{}
	var clients sync.WaitGroup
	for i := range got {
		sum := sha256.New()
		o := container.AttachOptions{Stdout: sum}
		if i == 0 {
			o.Stdin = io.TeeReader(io.LimitReader(source, size), sent)
		}
		a, err := r.Attach(c.ID, o)
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			if err := a.Serve(t.Context()); err != nil {
				t.Error(err)
			}
			got[i] = fmt.Sprintf("%x", sum.Sum(nil))
		})
	}
	// A client that reads nothing blocks the others only until the client leaves.
	idle, err := r.Attach(c.ID, container.AttachOptions{Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	idle.Close()
	broken, err := r.Attach(c.ID, container.AttachOptions{Stdout: brokenWriter{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := broken.Serve(t.Context()); err != nil && !errors.Is(err, errBroken) {
		t.Error(err)
	}
	clients.Wait()
	want := fmt.Sprintf("%x", sent.Sum(nil))
	if diff := cmp.Diff([2]string{want, want}, got); diff != "" {
		t.Errorf("digests of what came back (-want +got):\n%s", diff)
	}
	r.exited(c.ID)
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

// TestContainerRestart: after the engine's end a running container has exited, a container with
// automatic removal is gone, and written files and output are kept.
func TestContainerRestart(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	kept := r.create(container.Config{Name: "kept", Cmd: prog("orders"), OpenStdin: true})
	for _, cfg := range []container.Config{{Name: "gone", AutoRemove: true}, {Name: "never"}} {
		r.create(cfg)
	}
	in, commands := io.Pipe()
	out, said := io.Pipe()
	a, err := r.Attach("kept", container.AttachOptions{Stdin: in, Stdout: said})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "gone"} {
		if err := r.StartContainer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = a.Serve(t.Context()); _ = said.Close() })
	if _, err := io.WriteString(commands, "write /kept x\nargs done\n"); err != nil {
		t.Fatal(err)
	}
	for buf, text := make([]byte, 4096), ""; !strings.Contains(text, "done"); {
		n, err := out.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		text += string(buf[:n])
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	// The records as a killed engine leaves them.
	records := map[string][]byte{}
	for _, c := range r.Containers(true) {
		path := filepath.Join(r.state, "containers", c.ID, "config.json")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		records[path] = text
	}
	r.stop()
	_ = commands.Close()
	serving.Wait()
	for path, text := range records {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	unfinished := filepath.Join(r.state, "containers", strings.Repeat("ab", 32))
	if err := os.MkdirAll(filepath.Join(unfinished, "scratch"), 0o700); err != nil {
		t.Fatal(err)
	}

	r.start(Config{})
	got := map[string]string{}
	for _, c := range r.Containers(true) {
		got[c.Config.Name] = fmt.Sprint(c.State, " ", container.ExitCode(c.Exit))
	}
	if diff := cmp.Diff(map[string]string{"kept": "exited 137", "never": "created 0"}, got); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that was not made to the end is there: %v", err)
	}
	var logged []string
	if err := r.ContainerLogs(t.Context(), "kept", live.LogOptions{Tail: -1}, func(l live.LogLine) error {
		logged = append(logged, l.Text)
		return nil
	}); err != nil || !slices.Contains(logged, "done") {
		t.Errorf("log %q, %v", logged, err)
	}
	next := r.create(container.Config{Name: "gone"})
	if next.ID == kept.ID {
		t.Error("an id came twice")
	}
	var again bytes.Buffer
	b, err := r.Attach("kept", container.AttachOptions{Stdin: strings.NewReader("cat /kept\nexit 0\n"), Stdout: &again})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	if err := b.Serve(t.Context()); err != nil || !strings.Contains(again.String(), "\nx> ok\n") {
		t.Errorf("started again it wrote %q, %v", again.String(), err)
	}
}

// TestContainerImageRemoved: the removal of an image, which may take long, does not block the
// creation of a container of another image. For the same image either the container or the removal
// is refused.
func TestContainerImageRemoved(t *testing.T) {
	r := open(t)
	going := r.ordinary("ordinary")
	r.putSized("other", "1", 1, nil)
	if err := r.holds.WhileUnused("ordinary", going.Digest, r.imageUsers, func() error {
		r.create(container.Config{Image: "other"})
		if c, err := r.CreateContainer(t.Context(), container.Config{Image: "ordinary"}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("of an image that is being removed: %+v, %v", c, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	release, err := r.holds.Hold(going.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(t.Context(), "ordinary", build.RemoveOptions{}); !errors.Is(err, store.ErrInUse) {
		t.Errorf("remove while a container is being made: %v, want ErrInUse", err)
	}
	all := build.GCOptions{Policy: &build.GCPolicy{All: true}}
	if got, err := r.GC(t.Context(), all); err != nil || len(got.Images) > 0 {
		t.Errorf("collected while a container is being made: %v, %v", gone(got), err)
	}
	release()
	if got, err := r.GC(t.Context(), all); err != nil || len(got.Images) != 1 {
		t.Errorf("collected afterwards: %v, %v", gone(got), err)
	}
	if _, err := r.holds.Hold(going.Digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a container of an image that is gone: %v", err)
	}
	if n := len(r.holds.Making()); n > 0 {
		t.Errorf("%d images are held or leaving for ever", n)
	}
}

// TestContainersAtOnce: many containers are created, run and removed at the same time, while
// clients list containers.
func TestContainersAtOnce(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	var workers, lister sync.WaitGroup
	done := make(chan struct{})
	lister.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			seen := map[string]bool{}
			for _, s := range r.Sandboxes(true) {
				if seen[s.ID] {
					t.Errorf("%s is listed twice", s.ID)
				}
				seen[s.ID] = true
			}
			for _, c := range r.Containers(false) {
				_, _ = r.ContainerScratch(c.ID) // the container may be gone
			}
		}
	})
	for i := range 64 {
		workers.Go(func() {
			c, err := r.CreateContainer(t.Context(), container.Config{Image: "ordinary", Cmd: prog("args", fmt.Sprint(i)), AutoRemove: i%2 == 0})
			if err != nil {
				t.Error(err)
				return
			}
			gone, err := r.AwaitContainer(c.ID, container.WaitRemoved)
			if err == nil {
				err = r.StartContainer(t.Context(), c.ID)
			}
			if err == nil && i%2 == 1 {
				err = r.RemoveContainer(c.ID, true)
			}
			if err == nil {
				_, err = gone(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
	close(done)
	lister.Wait()
	if left := r.Containers(true); len(left) > 0 {
		t.Errorf("%d containers are left", len(left))
	}
	if left, err := os.ReadDir(filepath.Join(r.state, "containers")); err != nil || len(left) != 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}
}
