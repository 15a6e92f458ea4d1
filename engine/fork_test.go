package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/python"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// evaluate is a handler that runs the event's body and answers the variable out.
const evaluate = `
def handle(event, context):
    names = {}
    exec(event.text, names)
    return str(names.get("out", ""))
`

// needForks skips a test on kernels without fork servers. A test with subtests calls it first.
func needForks(t testing.TB) {
	t.Helper()
	if err := sandbox.CanFork(); err != nil {
		t.Skipf("this kernel has no fork servers: %v", err)
	}
}

// python stores an image of the host's own interpreter, the real bootstrap and a function's module.
func (r *rig) python(name, module string, change func(*image.Config)) {
	r.t.Helper()
	r.deployPython(name, r.pythonTree(module), change)
}

// pythonTree stores the files of such an image.
func (r *rig) pythonTree(module string) store.Digest {
	r.t.Helper()
	needForks(r.t)
	w, err := r.store.Create()
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Abort()
	add := func(target, source string) {
		f, err := os.Open(source)
		if err != nil {
			r.t.Fatal(err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err == nil {
			err = w.File(target, st.Mode().Perm(), st.ModTime(), f)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	binary, err := filepath.EvalSymlinks("/usr/bin/python3")
	if err != nil {
		r.t.Fatal(err)
	}
	lib := "usr/lib/" + filepath.Base(binary)
	needed := []string{binary}
	tops := regexp.MustCompile(`^(asyncio|collections|concurrent|ctypes|email|encodings|http|importlib|json|lib-dynload|logging|re|sqlite3|urllib|xml|[^/]*\.py)(/|$)`)
	err = filepath.WalkDir("/"+lib, func(path string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(path, "/"+lib+"/")
		switch {
		case err != nil || path == "/"+lib:
			return err
		case !tops.MatchString(rel) || d.Name() == "__pycache__":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		if strings.HasSuffix(path, ".so") {
			needed = append(needed, path)
		}
		add(lib+"/"+rel, path)
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := exec.CommandContext(r.t.Context(), "ldd", needed...).Output()
	if err != nil {
		r.t.Fatal(err)
	}
	libraries := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\t(?:\S+ => )?(/\S+) \(`).FindAllStringSubmatch(string(out), -1) {
		if !libraries[m[1]] {
			libraries[m[1]] = true
			add(m[1][1:], m[1])
		}
	}
	add("usr/bin/python3", binary)
	for name := range (python.Runtime{}).Bootstrap() {
		add("opt/fre/"+name, "../runtimes/python/"+name)
	}
	for path, text := range map[string]string{"function/main.py": module, "etc/resolv.conf": "", "etc/hosts": "127.0.0.1 localhost\n"} {
		if err := w.File(path, 0o644, time.Unix(1, 0), strings.NewReader(text)); err != nil {
			r.t.Fatal(err)
		}
	}
	tree, err := w.Commit(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return tree
}

func (r *rig) deployPython(name string, tree store.Digest, change func(*image.Config)) {
	r.t.Helper()
	cfg := image.Config{
		Base: "python", Args: []string{"/usr/bin/python3", "-S", "/opt/fre/bootstrap.py", "main.handle"},
		Env:      []string{"PYTHONPATH=/function:/opt/python", "PYTHONDONTWRITEBYTECODE=1", "HOME=/work", "LANG=C.UTF-8"},
		Protocol: image.ProtocolChannel, Tenant: "default", Forks: true,
		Instances: template.Instances{Isolation: template.IsolationEvent, Concurrency: 1, Max: 8, Idle: time.Minute},
		Resources: template.Resources{MemoryBytes: 128 << 20, CPUMillis: 1000, Pids: 32, TmpBytes: 1 << 20, Files: 64, Timeout: time.Minute},
	}
	if change != nil {
		change(&cfg)
	}
	img := r.put(name, cfg, []store.Part{{Kind: "code", Name: "python", Tree: tree}})
	if _, err := r.Deploy(r.t.Context(), name, img, DeployOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// settled waits until forking is on or off for good.
func (r *rig) settled(name string) string {
	r.t.Helper()
	state := ""
	eventually(r.t, "the fork server", func() bool {
		f, err := r.Function(name)
		if err != nil {
			r.t.Fatal(err)
		}
		state = f.Fork
		return state != "waiting"
	})
	return state
}

// forked calls the function when its fork server is ready.
func (r *rig) forked(name, body string) string {
	r.t.Helper()
	if state := r.settled(name); state != "on" {
		r.t.Fatalf("forking of %s is %q", name, state)
	}
	got, resp, err := r.call(r.t.Context(), name, "/", body)
	if err != nil || resp.StartKind != sandbox.StartForked || !resp.Cold {
		r.t.Fatalf("%s(%q) = %q, %+v, %v", name, body, got, resp, err)
	}
	return got
}

// TestForkIsolation: a fork is isolated as any sandbox: its own namespaces, cgroup, /proc and /tmp,
// and no capability.
func TestForkIsolation(t *testing.T) {
	r := open(t)
	r.python("f", "import ctypes, os, random, socket, ssl, tempfile, uuid\n"+evaluate, nil)
	if resp := r.mustCall("f", "/", "out = 1", "1"); resp.StartKind == sandbox.StartForked {
		t.Errorf("the first start was %q", resp.StartKind)
	}
	for _, c := range []struct{ name, code, want string }{
		{"process id", "import os; out = os.getpid(), os.getppid()", "(1, 0)"},
		{"proc", "import os; out = sorted(n for n in os.listdir('/proc') if n.isdigit())", "['1']"},
		{"CPUs", "import os; out = len(os.sched_getaffinity(0))", strconv.Itoa(runtime.NumCPU())},
		{"user", "import os; out = os.getuid(), os.getgid(), os.getgroups()", "(1000, 1000, [])"},
		{"capabilities", `out = [l.split()[1] for l in open("/proc/self/status") if l.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb"))]`, "['0000000000000000', '0000000000000000', '0000000000000000', '0000000000000000']"},
		{"no new privileges", `out = [l.split()[1] for l in open("/proc/self/status") if l.startswith("NoNewPrivs")]`, "['1']"},
		{"cgroup", `out = {l.strip().split(":")[2] for l in open("/proc/self/cgroup") if l.split(":")[1].strip() in ("cpu", "memory", "pids", "cpuacct") or l.startswith("0:") and l.strip() != "0::/"} or {"/"}`, "{'/'}"},
		{"files", "import os; out = sorted(os.listdir('/proc/self/fd'))", "['0', '1', '2', '3', '4']"},
		{"empty tmp", "import os; out = os.listdir('/tmp'); open('/tmp/x', 'w').close()", "[]"},
		{"empty tmp again", "import os; out = os.listdir('/tmp')", "[]"},
		{"size of tmp", "import os; s = os.statvfs('/tmp'); out = s.f_blocks * s.f_frsize", "1048576"},
		{"host name", "import socket; out = socket.gethostname()", "f"},
		{"work", "open('/work/x', 'a').write('x'); out = open('/work/x').read()", "x"},
		{"work again", "open('/work/x', 'a').write('x'); out = open('/work/x').read()", "xx"},
		{"loopback", `
import socket
s = socket.create_server(("127.0.0.1", 8000))
c = socket.create_connection(("127.0.0.1", 8000))
s.accept()[0].sendall(b"hello"); out = c.recv(5)`, "b'hello'"},
		{"thread", `
import threading
t = threading.Thread(target=lambda: globals().update(out=threading.get_native_id() != 1)); t.start(); t.join()
out = True`, "True"},
		{"child", "import os; p = os.fork() or os._exit(7); out = os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])", "7"},
		{"subprocess", "import subprocess, sys; out = subprocess.run([sys.executable, '-S', '-c', 'print(5)'], capture_output=True).stdout", `b'5\n'`},
		{"mount", "import ctypes; c = ctypes.CDLL(None, use_errno=True); c.mount(b'x', b'/tmp', b'tmpfs', 0, None); out = ctypes.get_errno()", "1"},
		{"more namespaces", "import ctypes; c = ctypes.CDLL(None, use_errno=True); c.unshare(0x20000); out = ctypes.get_errno()", "1"},
		{"user namespace", "import ctypes; c = ctypes.CDLL(None, use_errno=True); out = c.unshare(0x10000000)", "-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := r.forked("f", c.code); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestForkUnique: random values differ from fork to fork.
func TestForkUnique(t *testing.T) {
	r := open(t)
	r.python("f", "import random, ssl, tempfile, uuid\nrandom.seed(1); ssl.RAND_bytes(8); next(tempfile._get_candidate_names())\n"+evaluate, nil)
	r.mustCall("f", "/", "", "")
	for _, code := range []string{
		"import random; out = random.random()",
		"import ssl; out = ssl.RAND_bytes(8)",
		"import tempfile; out = next(tempfile._get_candidate_names())",
		"import uuid; out = uuid.uuid4()",
		"import uuid; out = uuid.uuid1()",
		"import os; out = os.urandom(8)",
		"import secrets; out = secrets.token_hex(8)",
	} {
		seen := map[string]bool{}
		for range 8 {
			if got := r.forked("f", code); seen[got] {
				t.Errorf("%s: %s twice", code, got)
			} else {
				seen[got] = true
			}
		}
	}
}

// atImport is a module that runs the code in the environment.
const atImport = "import os; exec(os.environ['AT_IMPORT'], globals())\n" + evaluate

// TestForkDeclined: the engine does not fork a module with state that a child would lack or share.
func TestForkDeclined(t *testing.T) {
	needForks(t)
	r := open(t)
	tree := r.pythonTree(atImport)
	for name, c := range map[string]struct{ module, want string }{
		"thread":         {"import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "off: the module started 1 threads at import"},
		"process":        {"import subprocess\np = subprocess.Popen(['/usr/bin/python3', '-S', '-c', 'import time; time.sleep(60)'])", "off: the module started a process at import"},
		"socket":         {"import socket\ns = socket.create_server(('127.0.0.1', 0))", "off: the module keeps socket:[…] open after import"},
		"file":           {"f = open('/function/main.py')", "off: the module keeps /function/main.py open after import"},
		"directory":      {"f = os.open('/proc', os.O_RDONLY)", "off: the module keeps /proc open after import"},
		"timerfd":        {"import ctypes\nctypes.CDLL(None).timerfd_create(1, 0)", "off: the module keeps anon_inode:[timerfd] open after import"},
		"stdin":          {"f = os.open('/proc/self/status', os.O_RDONLY); os.dup2(f, 0); os.close(f)", "off: the module made /proc/3/status its standard input"},
		"tmp":            {"open('/tmp/cache', 'w').close()", "off: the module left files in /tmp at import"},
		"memory":         {"import mmap\nm = mmap.mmap(-1, 4096)", "off: the module created shared memory at import"},
		"memory to read": {"import mmap\nf = os.memfd_create('x'); os.ftruncate(f, 4096)\nm = mmap.mmap(f, 4096, prot=mmap.PROT_READ)\nos.close(f); m2 = m", "off: the module created shared memory at import"},
		"locked memory":  {"import ctypes\nb = ctypes.create_string_buffer(4096); ctypes.CDLL(None).mlock(b, 4096)", "off: the module locked memory at import, or excludes memory from fork"},
		"process's own":  {"os.chdir('/proc/self')", "off: the module's working directory after import is /proc/3, a process's directory"},
		"no directory":   {"os.mkdir('/tmp/d'); os.chdir('/tmp/d'); os.rmdir('/tmp/d')", "off: the module's working directory was removed at import"},
		"alarm":          {"import signal\nsignal.alarm(600)", "off: the module set a timer at import"},
		"interval timer": {"import signal\nsignal.setitimer(signal.ITIMER_PROF, 600)", "off: the module set a timer at import"},
		"POSIX timer":    {"import ctypes\nt = ctypes.c_void_p(); c = ctypes.CDLL(None); c.timer_create(1, None, ctypes.byref(t)); c.timer_create(1, None, ctypes.byref(t))", "off: the module made a timer at import"},
		"signal":         {"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); os.kill(os.getpid(), signal.SIGUSR1)", "off: a signal is pending after import, and no child inherits pending signals"},
		"lock":           {"import fcntl\nf = os.open('/dev/null', os.O_RDWR); fcntl.flock(f, fcntl.LOCK_EX)", "off: the module holds a lock on /dev/null after import"},
		"scheduling":     {"os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))", "off: the module asked for a scheduling policy at import that no child inherits (SCHED_RESET_ON_FORK)"},
		"never":          {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.NewReplacer(" ", "-", "'", "").Replace(strings.ToLower(name))
			r.deployPython(id, tree, func(cfg *image.Config) {
				cfg.Forks, cfg.Env = name != "never", append(cfg.Env, "AT_IMPORT="+c.module)
			})
			r.mustCall(id, "/", "out = 1", "1")
			got := regexp.MustCompile(`\[\d+\]`).ReplaceAllString(r.settled(id), "[…]")
			if got != c.want {
				t.Fatalf("forking is %q, want %q", got, c.want)
			}
			if resp := r.mustCall(id, "/", "out = 2", "2"); resp.StartKind == sandbox.StartForked {
				t.Errorf("start was %q", resp.StartKind)
			}
		})
	}
}

// TestForkState: a fork behaves as a process that has just imported the module itself. The same
// module and events without a fork server give the expected state.
func TestForkState(t *testing.T) {
	needForks(t)
	const change = `
import ctypes, os, resource, signal, socket, sys
libc = ctypes.CDLL(None)
os.chdir(%q)
os.umask(0o27)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.signal(signal.SIGHUP, lambda *_: None)
os.nice(3)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.sched_setaffinity(0, [0])
libc.syscall(251, 1, 0, 2 << 13 | 6)  # ioprio_set
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); resource.setrlimit(resource.RLIMIT_NOFILE, (48, 50))
os.environ["MADE"] = "at import"
libc.prctl(15, b"renamed"); libc.prctl(1, 15); libc.prctl(36, 1); libc.prctl(4, 0); libc.prctl(29, 70000)
urandom = os.open("/dev/urandom", os.O_RDONLY | os.O_NONBLOCK)
`
	probes := map[string]string{
		"directory":       "import os; out = os.getcwd(), sorted(os.listdir('.'))",
		"umask":           "import os; out = os.umask(0)",
		"signals blocked": "import signal; out = signal.pthread_sigmask(signal.SIG_BLOCK, [])",
		"signal handlers": "import signal; out = [repr(signal.getsignal(s)).split(' at ')[0] for s in sorted(signal.valid_signals())]",
		"signals in proc": "out = [l for l in open('/proc/self/status') if l.startswith(('Sig', 'Shd', 'NoNew', 'Seccomp'))]",
		"timers":          "import signal; out = signal.alarm(0), [signal.getitimer(k) for k in range(3)]",
		"nice":            "import os; out = os.nice(0), os.sched_getscheduler(0), os.sched_getaffinity(0)",
		"I/O priority":    "import ctypes; out = ctypes.CDLL(None).syscall(252, 1, 0)",
		"limits":          "import resource; out = [resource.getrlimit(k) for k in range(16)]",
		"environment":     "import os; out = sorted(n for n in os.environ)",
		"attributes": `
import ctypes
c, v = ctypes.CDLL(None), ctypes.c_int()
out = [c.prctl(n) for n in (3, 7, 27, 30, 39)] # dumpable, keep capabilities, secure bits, timer slack, no new privileges
for n in (2, 37): # death signal, subreaper
    c.prctl(n, ctypes.byref(v)); out.append(v.value)`,
		"name":        "out = open('/proc/self/comm').read()",
		"OOM score":   "out = open('/proc/self/oom_score_adj').read(), open('/proc/self/coredump_filter').read()",
		"personality": "import ctypes; out = ctypes.CDLL(None).personality(0xffffffff)",
		"session":     "import os; out = os.getsid(0), os.getpgid(0), os.getppid()",
		"locks":       "import fcntl, os; out = [fcntl.flock(os.open('/dev/' + d, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB) for d in ('full', 'zero')]",
		"open files": `
import os
there = lambda f: os.path.exists('/proc/self/fd/' + f) # but for the listing's own
out = sorted((f, os.path.basename(os.readlink('/proc/self/fd/' + f))) for f in os.listdir('/proc/self/fd') if f not in '123' and there(f))`,
		"open file's flags": "import fcntl, sys; out = [fcntl.fcntl(f, fcntl.F_GETFL) for f in (0, sys.modules['main'].urandom)]; fcntl.fcntl(0, fcntl.F_SETFL, 2048); fcntl.fcntl(sys.modules['main'].urandom, fcntl.F_SETFL, 0)",
		"memory":            "out = [l for l in open('/proc/self/status') if l.startswith(('VmLck', 'VmPin', 'Threads', 'CoreDumping', 'THP_'))]",
		"processes":         "import os; out = [n for n in os.listdir('/proc') if n.isdigit()]",
		"tmp":               "import os; out = os.listdir('/tmp')",
	}
	r := open(t)
	tree := r.pythonTree(atImport)
	for dir, id := range map[string]string{"/tmp": "tmp", "/proc": "proc", "/work": "work"} {
		for name, forks := range map[string]bool{id: true, id + "-anew": false} {
			r.deployPython(name, tree, func(cfg *image.Config) {
				cfg.Forks, cfg.Env = forks, append(cfg.Env, "AT_IMPORT="+fmt.Sprintf(change, dir))
			})
		}
		r.mustCall(id, "/", "", "")
		if state := r.settled(id); state != "on" {
			t.Fatalf("%s: forking is %q", dir, state)
		}
		for what, probe := range probes {
			want, _, err := r.call(t.Context(), id+"-anew", "/", probe)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for range 2 { // a change stays in its own fork
				if got := r.forked(id, probe); got != want {
					t.Errorf("%s, in %s: a fork has %s, a process started anew %s", what, dir, got, want)
				}
			}
		}
		// No event sees files of another event, not even through the working directory.
		if dir == "/tmp" {
			for range 2 {
				if got := r.forked(id, "import os; out = os.listdir('.'); open('kept', 'w').close()"); got != "[]" {
					t.Errorf("an event finds %s in its working directory", got)
				}
			}
		}
	}
}

// TestForkInstances: after a slow import, new reused instances are forks, threads included.
func TestForkInstances(t *testing.T) {
	r := open(t)
	r.python("f", "import time\ntime.sleep(0.05)\n"+evaluate, func(c *image.Config) {
		c.Instances.Isolation, c.Instances.Concurrency, c.Resources.Pids = template.IsolationInstance, 4, 64
	})
	first := r.mustCall("f", "/", "out = 1", "1")
	if first.StartKind == sandbox.StartForked {
		t.Errorf("first start was %q", first.StartKind)
	}
	if warm := r.mustCall("f", "/", "out = 1", "1"); warm.StartKind != StartWarm {
		t.Errorf("second start was %q", warm.StartKind)
	}
	if state := r.settled("f"); state != "on" {
		t.Fatal(state)
	}
	if err := r.Stop(t.Context(), first.Instance, time.Minute); err != nil {
		t.Fatal(err)
	}
	r.forked("f", "out = 1")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, _, err := r.call(t.Context(), "f", "/", "import time; time.sleep(0.05); out = 3"); err != nil || got != "3" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
}

// TestForkEnds: the error of an event in a fork says how the fork ended. If a limit ended it, the
// error names the template's key.
func TestForkEnds(t *testing.T) {
	r := open(t)
	tree := r.pythonTree(evaluate)
	r.deployPython("f", tree, nil)
	r.deployPython("brief", tree, func(c *image.Config) { c.Resources.Timeout = 3 * time.Second }) // too short for some starts
	r.mustCall("f", "/", "out = 1", "1")
	r.forked("f", "out = 1")
	eventually(t, "a fork of brief", func() bool {
		_, resp, err := r.call(t.Context(), "brief", "/", "out = 1")
		return err == nil && resp.StartKind == sandbox.StartForked
	})
	for _, c := range []struct{ name, code, want string }{
		{"exit", "import os; os._exit(3)", "function exited with status 3 before it answered"},
		{"signal", "import os, ctypes; ctypes.string_at(0)", "function was killed by SIGSEGV before it answered"},
		{"memory", "x = bytearray(300 << 20)", "function ran out of memory before it answered: the sandbox has at most 128MiB of memory, /tmp included: raise resources.memory in fret.yaml"},
		{"tmp", "open('/tmp/x', 'wb').write(b'0' * (65 << 20))", "OSError: [Errno 28] No space left on device (/tmp of the sandbox holds at most 1MiB: raise resources.tmp in fret.yaml)"},
		{"exception", "1 / 0", "ZeroDivisionError: division by zero"},
		{"time", "while True: pass", ErrTimeout.Error()},
		{"stuck", "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(60)", ErrTimeout.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			function := "f"
			if c.want == ErrTimeout.Error() {
				function = "brief"
			}
			_, _, err := r.call(t.Context(), function, "/", c.code)
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	r.forked("f", "out = 1")
	for _, s := range r.Sandboxes(true) {
		if s.State == live.StateExited && s.Exit.CPU == 0 {
			t.Errorf("%+v has used no CPU time: %+v", s, s.Exit)
		}
	}
}

// TestForkServerDies: the forks of a dead fork server end with it. Ordinary starts serve events
// until another fork server is ready.
func TestForkServerDies(t *testing.T) {
	r := open(t)
	r.python("f", evaluate, nil)
	r.mustCall("f", "/", "out = 1", "1")
	r.forked("f", "out = 1")
	f, err := r.lookup("f")
	if err != nil {
		t.Fatal(err)
	}
	f.forks.mu.Lock()
	server := f.forks.server
	f.forks.mu.Unlock()
	failed := make(chan error)
	go func() {
		_, _, err := r.call(context.Background(), "f", "/", "import time; open('/work/on', 'w').close(); time.sleep(60)")
		failed <- err
	}()
	work := filepath.Join(r.state, "tenants/default/work/on")
	eventually(t, "the event's begin", func() bool { return exists(work) })
	server.box.Kill()
	var crash *CrashError
	if err := <-failed; !errors.As(err, &crash) {
		t.Errorf("an event on a fork of a dead server: %v", err)
	}
	<-server.box.Gone()
	r.mustCall("f", "/", "out = 2", "2")
	f.forks.mu.Lock()
	f.forks.retry = time.Time{} // the back-off is over
	f.forks.mu.Unlock()
	r.mustCall("f", "/", "out = 3", "3")
	r.forked("f", "out = 4")
}

// TestForkServerSlow: a fork server that does not answer gets no further work, and events in its
// forks end as usual.
func TestForkServerSlow(t *testing.T) {
	r := open(t)
	r.python("f", `
import os, sys, time
fork = sys.modules.get("_fre.fork")
if fork:
    receive = fork.receive
    def slow(channel):
        fds = receive(channel)
        while os.path.exists("/work/on"): time.sleep(0.01)
        return fds
    fork.receive = slow
`+evaluate, nil)
	r.mustCall("f", "/", "out = 1", "1")
	r.forked("f", "out = 1")
	f, err := r.lookup("f")
	if err != nil {
		t.Fatal(err)
	}
	f.forks.mu.Lock()
	server := f.forks.server
	f.forks.mu.Unlock()
	answer := make(chan string)
	go func() {
		got, resp, err := r.call(context.Background(), "f", "/", "import os, time; open('/work/on', 'w').close()\nwhile not os.path.exists('/work/off'): time.sleep(0.01)\nout = 2")
		if err == nil {
			got += " " + string(resp.StartKind)
		}
		answer <- fmt.Sprint(got, err)
	}()
	work := filepath.Join(r.state, "tenants/default/work")
	eventually(t, "the event's begin", func() bool { return exists(work + "/on") })
	for range 20 { // the parked forks go first
		if resp := r.mustCall("f", "/", "out = 3", "3"); resp.StartKind != sandbox.StartForked {
			break
		}
	}
	eventually(t, "the end of the server's use", func() bool {
		f.forks.mu.Lock()
		defer f.forks.mu.Unlock()
		return f.forks.server != server && f.forks.failures > 0
	})
	if err := os.WriteFile(work+"/off", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got != "2 "+string(sandbox.StartForked)+"<nil>" {
		t.Errorf("the event in a fork of a slow server: %s", got)
	}
	<-server.box.Gone()
}

func exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

// TestForkRedeploy: an event in a fork ends on the deployment on which the event began.
func TestForkRedeploy(t *testing.T) {
	r := open(t)
	r.python("f", "version = 1\n"+evaluate, nil)
	r.mustCall("f", "/", "out = 1", "1")
	r.forked("f", "out = 1")
	answer := make(chan string)
	go func() {
		got, _, err := r.call(context.Background(), "f", "/", "import main, os, time; open('/work/on', 'w').close()\nwhile not os.path.exists('/work/off'): time.sleep(0.01)\nout = main.version")
		answer <- fmt.Sprint(got, err)
	}()
	work := filepath.Join(r.state, "tenants/default/work")
	eventually(t, "the event's begin", func() bool { return exists(work + "/on") })
	r.python("f", "version = 2\n"+evaluate, nil)
	r.mustCall("f", "/", "import main; out = main.version", "2")
	if err := os.WriteFile(work+"/off", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got != "1<nil>" {
		t.Errorf("the old deployment's event: %s", got)
	}
	r.forked("f", "out = 1")
}

// TestForkHostile: if a module takes over the fork server, the engine accepts no forged instance,
// and ordinary starts serve the events.
func TestForkHostile(t *testing.T) {
	needForks(t)
	// Replaces the bootstrap's part; attack runs for each FORK.
	takeover := func(attack string) string {
		return `
import os, sys
_fre, fork = sys.modules["_fre"], sys.modules.get("_fre.fork")

def serve(load_us):
    from _socket import socket
    _fre.send_ready(1, load_us, "")
    channel = socket(fileno=3)
    while True:
        fds = fork.receive(channel)
        if fds is None:
            os._exit(0)
        attack(fds)
        for fd in fds:
            os.close(fd)

def report(fd):
    _fre.fd = fd
    _fre.send(fork.FORKED, 0, 0)
    _fre.fd = 3

def sleep():
    import time
    time.sleep(60)

def attack(fds):
` + attack + `
if fork:
    fork.serve = serve
` + evaluate
	}
	r := open(t)
	for name, attack := range map[string]string{
		"itself": "    report(fds[0])\n",
		"not first": `
    if os.fork() == 0:
        fork.check(fork.libc.unshare(fork.NEWNS | fork.NEWIPC | fork.NEWUTS | fork.NEWNET))
        report(fds[0])
        sleep()
`,
		"shared namespaces": `
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    fork.check(fork.libc.unshare(fork.NEWPID))
    if os.fork() == 0:
        report(fds[0])
        sleep()
    fork.check(fork.libc.setns(own, fork.NEWPID))
    os.close(own)
`,
		"noise":      "    os.write(fds[0], b'x' * 4096)\n",
		"wrong word": "    os.write(fds[0], bytes((0, 0, 0, 0, _fre.READY)) + bytes(11))\n",
		"files":      "    import _socket; from _socket import SOL_SOCKET, SCM_RIGHTS; _socket.socket(fileno=os.dup(fds[0])).sendmsg([bytes(16)], [(SOL_SOCKET, SCM_RIGHTS, bytes((1, 0, 0, 0)) * 20)])\n",
		"silence":    "    globals().setdefault('kept', []).append([os.dup(fd) for fd in fds])\n",
		"dies":       "    os._exit(0)\n",
		"killed":     "    if os.fork() == 0: os.kill(os.getppid(), 9)\n    sleep()\n",
	} {
		t.Run(name, func(t *testing.T) {
			name := strings.ReplaceAll(name, " ", "-")
			r.python(name, takeover(attack), nil)
			r.mustCall(name, "/", "out = 0", "0")
			f, err := r.lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the fork server's end", func() bool {
				f.forks.mu.Lock()
				defer f.forks.mu.Unlock()
				return f.forks.failures > 0 && f.forks.server == nil
			})
			if resp := r.mustCall(name, "/", "out = 1", "1"); resp.StartKind == sandbox.StartForked {
				t.Errorf("start was %q", resp.StartKind)
			}
			eventually(t, "the end of all sandboxes", func() bool { return len(r.Sandboxes(false)) == 0 })
		})
	}
}

// TestForkServerPower: during the import a module has the fork server's CAP_SYS_ADMIN and no other
// capability. It can create 200 sets of namespaces at most.
func TestForkServerPower(t *testing.T) {
	r := open(t)
	r.python("f", `
import ctypes, os
def attempt(name, *args):
    c = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    c[name](*args)
    return name, ctypes.get_errno()
if "_fre.fork" in __import__("sys").modules:
    out = [l.split()[1] for l in open("/proc/self/status") if l.startswith(("CapPrm", "CapEff", "CapBnd"))]
    spaces = []
    try:
        while len(spaces) < 1000:
            from _fre import fork
            own = os.open("/proc/self/ns/net", os.O_RDONLY)
            fork.check(fork.libc.unshare(fork.NEWNET | fork.NEWNS | fork.NEWIPC | fork.NEWUTS))
            spaces.append(own)
    except OSError as e:
        os.close(own)
        last = e.errno
    with open("/work/report", "w") as f:
        print(out, len(spaces), last, attempt("unshare", 0x10000000), attempt("setns", os.open("/proc/self/ns/user", 0), 0), file=f)
    raise SystemExit("done")
`+evaluate, nil)
	r.mustCall("f", "/", "out = 1", "1")
	work := filepath.Join(r.state, "tenants/default/work/report")
	eventually(t, "the module's report", func() bool { b, err := os.ReadFile(work); return err == nil && len(b) > 0 })
	got, err := os.ReadFile(work)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", got)
	var n, last int
	capability := "0000000000200000" // CAP_SYS_ADMIN
	want := fmt.Sprintf("['%s', '%s', '%s'] %%d %%d", capability, capability, capability)
	if _, err := fmt.Sscanf(string(got), want, &n, &last); err != nil || n > 200 || unix.Errno(last) != unix.ENOSPC {
		t.Errorf("%s: %v; want %s", got, err, want)
	}
}

// TestForkServerNeverReaps: the engine kills a fork server that does not reap dead children, since
// dead children hold cgroups.
func TestForkServerNeverReaps(t *testing.T) {
	r := open(t)
	r.python("f", `
import sys
if "_fre.fork" in sys.modules:
    class Signals:
        SIGCHLD, SIG_IGN, SIG_DFL = 17, 1, 0
        signal = getsignal = staticmethod(lambda *_: None)
    sys.modules["_fre.fork"].signal = Signals
`+evaluate, nil)
	r.mustCall("f", "/", "out = 1", "1")
	r.forked("f", "out = 1")
	f, err := r.lookup("f")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the fork server's end", func() bool {
		f.forks.mu.Lock()
		defer f.forks.mu.Unlock()
		return f.forks.failures > 0
	})
}

// BenchmarkForkedEvent: simultaneous events, each in its own fork, from the start to the end of the
// fork.
func BenchmarkForkedEvent(b *testing.B) {
	r := open(b)
	r.python("f", "def handle(event, context): return 'x'\n", nil)
	r.mustCall("f", "/", "", "x")
	r.forked("f", "")
	b.SetParallelism(2)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, resp, err := r.call(b.Context(), "f", "/", ""); err != nil || resp.StartKind != sandbox.StartForked {
				b.Errorf("%+v, %v", resp, err)
				return
			}
		}
	})
}
