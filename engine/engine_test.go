package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

var fnBinary []byte // the program of testdata/fn

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Geteuid() == 0 {
			if err := sandbox.Isolate(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		dir, err := os.MkdirTemp("", "fre-engine-test")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		path := os.Getenv("FRE_TEST_FN") // set on machines without Go, like the v2 machine
		if path == "" {
			path = filepath.Join(dir, "fn")
			build := exec.CommandContext(context.Background(), "go", "build", "-o", path, "./testdata/fn")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build testdata/fn: %v\n%s", err, out)
				return 1
			}
		}
		if fnBinary, err = os.ReadFile(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// rig is an engine on a state directory of its own.
type rig struct {
	*Engine
	t     testing.TB
	store *store.Store
	state string
	stop  func() // closes the engine, once
}

func open(t testing.TB) *rig {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	r := &rig{t: t, state: t.TempDir()}
	r.start(Config{})
	return r
}

// start opens the engine on the rig's state; the end of the test closes it.
func (r *rig) start(cfg Config) {
	r.t.Helper()
	log := slog.New(slog.NewTextHandler(r.t.Output(), nil))
	st, err := store.Open(filepath.Join(r.state, "store"), log)
	if err != nil {
		r.t.Fatal(err)
	}
	host, err := sandbox.Open(sandbox.Config{Dir: filepath.Join(r.state, "run"), Log: log, PoolSize: 4})
	if err != nil {
		r.t.Fatal(errors.Join(err, st.Close()))
	}
	cfg.Store, cfg.Sandboxes, cfg.StateDir, cfg.Log = st, host, r.state, log
	cfg.Builder = &image.Builder{Store: st}
	if cfg.Queue == (admission.QueueConfig{}) { // a slow machine is not an overload
		cfg.Queue.Target, cfg.Queue.Interval = time.Hour, time.Hour
	}
	r.Engine, err = Open(cfg)
	if err != nil {
		r.t.Fatal(errors.Join(err, host.Close(), st.Close()))
	}
	r.store = st
	eng := r.Engine
	r.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := errors.Join(eng.Close(ctx), host.Close(), st.Close()); err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(r.stop)
}

// image stores an image whose function is testdata/fn.
func (r *rig) image(name string, change func(*image.Config)) *store.Image {
	r.t.Helper()
	defer r.store.Hold()()
	w, err := r.store.Create()
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Abort()
	if err := w.File("function/fn", 0o755, time.Unix(1, 0), bytes.NewReader(fnBinary)); err != nil {
		r.t.Fatal(err)
	}
	for _, mountPoint := range []string{"etc/resolv.conf", "etc/hosts"} {
		if err := w.File(mountPoint, 0o644, time.Unix(1, 0), strings.NewReader("")); err != nil {
			r.t.Fatal(err)
		}
	}
	tree, err := w.Commit(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := image.Config{
		Base: "native", Args: []string{"/function/fn"}, Protocol: image.ProtocolChannel, Tenant: "default",
		Instances: template.Instances{Isolation: template.IsolationInstance, Concurrency: 1, Max: 8, Idle: time.Minute},
		Resources: template.Resources{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 32, TmpBytes: 1 << 20, Files: 64, Timeout: time.Minute},
	}
	if change != nil {
		change(&cfg)
	}
	return r.put(name, cfg, []store.Part{{Kind: "code", Name: "fn", Tree: tree}})
}

// put makes an image of parts.
func (r *rig) put(name string, cfg image.Config, parts []store.Part) *store.Image {
	r.t.Helper()
	raw, err := json.Marshal(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	img, err := r.store.PutImage(r.t.Context(), store.Manifest{Name: name, Version: "1", Config: raw, Parts: parts})
	if err != nil {
		r.t.Fatal(err)
	}
	return img
}

func (r *rig) deploy(name string, change func(*image.Config)) {
	r.t.Helper()
	if _, err := r.Deploy(r.t.Context(), name, r.image(name, change), DeployOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// call invokes a function and reads the whole answer.
func (r *rig) call(ctx context.Context, name, path, body string) (string, *Response, error) {
	req := &Request{Method: "POST", Path: path, Length: int64(len(body))}
	if body != "" {
		req.Body = strings.NewReader(body)
	}
	resp, err := r.Invoke(ctx, name, req)
	if err != nil {
		return "", nil, err
	}
	got, err := io.ReadAll(resp.Body)
	return string(got), resp, errors.Join(err, resp.Body.Close())
}

func (r *rig) mustCall(name, path, body, want string) *Response {
	r.t.Helper()
	got, resp, err := r.call(r.t.Context(), name, path, body)
	if err != nil || (want != "" && got != want) {
		r.t.Fatalf("%s %s(%q) = %q, %v; want %q", name, path, body, got, err, want)
	}
	return resp
}

func stdio(c *image.Config) {
	c.Protocol, c.Instances.Isolation = image.ProtocolStdio, template.IsolationEvent
}

func TestWarmReuse(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	first := r.mustCall("f", "/", "one", "one")
	second := r.mustCall("f", "/", "two", "two")
	if !first.Cold || second.Cold || first.Instance != second.Instance {
		t.Errorf("first %+v, second %+v; want a cold start, then the same instance warm", first, second)
	}
	if _, _, err := r.call(t.Context(), "nobody", "/", ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unknown name: %v", err)
	}
}

func TestFreshPerEvent(t *testing.T) {
	for name, change := range map[string]func(*image.Config){
		"channel": func(c *image.Config) { c.Instances.Isolation = template.IsolationEvent },
		"stdio":   stdio,
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.deploy("f", change)
			a, b := r.mustCall("f", "/", "one", "one"), r.mustCall("f", "/", "two", "two")
			if !a.Cold || !b.Cold || a.Instance == b.Instance {
				t.Errorf("%+v, then %+v; want two cold starts", a, b)
			}
			eventually(t, "the sandboxes to be forgotten", func() bool { return len(r.Sandboxes(false)) == 0 })
		})
	}
}

// TestStdio: a program gets an event by standard input and environment, and answers by standard
// output. A failed event has an id.
func TestStdio(t *testing.T) {
	r := open(t)
	r.deploy("f", stdio)
	var fe *FunctionError
	if _, _, err := r.call(t.Context(), "f", "/fail", ""); !errors.As(err, &fe) || fe.Message != "exit status 3" || len(Failed(err).ID) != 16 || Failed(err).Instance == "" {
		t.Errorf("exit 3: %v, %+v", err, Failed(err))
	}
	if _, _, err := r.call(t.Context(), "nothing", "/", ""); len(Failed(err).ID) != 16 {
		t.Errorf("no function: %v, %+v", err, Failed(err))
	}
	big, _, err := r.call(t.Context(), "f", "/big", "")
	if err != nil || len(big) != 3<<20 {
		t.Errorf("big answer: %d bytes, %v", len(big), err)
	}
	if big, _, err = r.call(t.Context(), "f", "/bigfail", ""); !errors.As(err, &fe) || len(big) != 3<<20 {
		t.Errorf("big answer, then exit 4: %d bytes, %v; want the body to end in an error", len(big), err)
	}
	body := strings.Repeat("z", 5<<20)
	if got, _, err := r.call(t.Context(), "f", "/", body); got != body || err != nil {
		t.Errorf("5 MiB echo: %d bytes, %v", len(got), err)
	}
	cut := io.MultiReader(strings.NewReader("half"), &faultReader{r: errReader{}})
	if _, err := r.Invoke(t.Context(), "f", &Request{Path: "/", Body: cut, Length: -1}); !errors.Is(err, errCut) {
		t.Errorf("body that breaks off: %v; want the reader's error", err)
	}
	req := &Request{Path: "/env", Query: "q=1", Method: "PUT", Headers: [][2]string{{"X-Thing", "a"}, {"x-thing", "b"}, {"Proxy", "evil"}}}
	resp, err := r.Invoke(t.Context(), "f", req)
	if err != nil {
		t.Fatal(err)
	}
	env, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FRE_QUERY=q=1", "FRE_METHOD=PUT", "HTTP_X_THING=a, b", "FRE_FUNCTION=f"} {
		if !strings.Contains(string(env)+"\n", want+"\n") {
			t.Errorf("environment lacks %s:\n%s", want, env)
		}
	}
	if strings.Contains(string(env), "HTTP_PROXY") {
		t.Error("HTTP_PROXY passed on")
	}
}

var errCut = errors.New("client broke off")

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errCut }

// TestNoStampede: simultaneous events on a cold function start no more instances than they can
// fill.
func TestNoStampede(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) { c.Instances.Concurrency = 16 })
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, _, err := r.call(t.Context(), "f", "/slow", "x"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(r.Sandboxes(true)); n != 1 {
		t.Errorf("16 events on a function of concurrency 16 started %d instances", n)
	}
}

func TestMaxAndQueue(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) { c.Instances.Max = 2 })
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, _, err := r.call(t.Context(), "f", "/slow", "x"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(r.Sandboxes(true)); n > 2 {
		t.Errorf("%d instances; the maximum is 2", n)
	}
}

func TestMinAndIdle(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) {
		c.Instances.Min, c.Instances.Concurrency, c.Instances.Idle = 1, 1, 50*time.Millisecond
	})
	eventually(t, "the minimum to be warm", func() bool { return len(r.Sandboxes(false)) == 1 })
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { r.mustCall("f", "/slow", "x", "x") })
	}
	wg.Wait()
	eventually(t, "idle instances above the minimum to stop", func() bool { return len(r.Sandboxes(false)) == 1 })
	first := r.Sandboxes(false)[0].ID
	if err := r.Kill(first); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a killed minimum to come back", func() bool {
		s := r.Sandboxes(false)
		return len(s) == 1 && s[0].ID != first
	})
}

func TestFailures(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.deploy("brief", func(c *image.Config) { c.Resources.Timeout = 2 * time.Second }) // too short for some starts
	r.deploy("broken", func(c *image.Config) { c.Env = []string{"FN_LOAD=fail"} })
	var fe *FunctionError
	var ce *CrashError
	tests := []struct {
		name, function, path string
		check                func(error) bool
	}{
		{"exception", "f", "/fail", func(err error) bool { return errors.As(err, &fe) && fe.Message == "went wrong" }},
		{"time-out", "brief", "/hang", func(err error) bool { return errors.Is(err, ErrTimeout) }},
		{"stuck", "brief", "/stuck", func(err error) bool { return errors.Is(err, ErrTimeout) }},
		{"exits in the middle", "f", "/exit", func(err error) bool { return errors.As(err, &ce) && ce.Status.Code == 7 }},
		{"malformed frame", "f", "/garbage", func(err error) bool { return errors.As(err, &ce) && strings.Contains(ce.Reason, "malformed") }},
		{"exits at once", "broken", "/", func(err error) bool { return errors.As(err, &ce) && ce.Status.Code == 3 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, _, err := r.call(t.Context(), tt.function, tt.path, "x"); !tt.check(err) {
				t.Errorf("%s: %v (%T)", tt.path, err, err)
			}
			switch tt.function {
			case "f":
				r.mustCall("f", "/", "still here", "still here")
			case "brief":
				eventually(t, "the function to answer", func() bool {
					got, _, err := r.call(t.Context(), "brief", "/", "still here")
					return err == nil && got == "still here"
				})
			}
		})
	}
}

// TestLastWords: the engine keeps an instance's last output, even if an event notices the end of
// the instance first.
func TestLastWords(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	var events sync.WaitGroup
	for range 4 {
		events.Go(func() {
			for range 20 {
				var ce *CrashError
				got, _, err := r.call(t.Context(), "f", "/last", "")
				if len(got) != 100_000 || !errors.As(err, &ce) || ce.Status.Code != 7 {
					t.Errorf("%d bytes, %v; want 100000 and its exit status", len(got), err)
				}
			}
		})
	}
	events.Wait()
}

// TestStop: the engine asks an instance to end through its channel: as pid 1 the instance would
// ignore a signal without a handler.
func TestStop(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	first := r.mustCall("f", "/", "one", "one")
	if err := r.Stop(t.Context(), first.Instance[:6], time.Hour); err != nil {
		t.Fatal(err)
	}
	ended := r.Sandboxes(true)
	if len(ended) != 1 || ended[0].Exit == nil || ended[0].Exit.Signal != 0 || ended[0].Exit.Code != 0 {
		t.Errorf("after it was stopped: %+v, want one sandbox that exited by itself", ended)
	}
	if next := r.mustCall("f", "/", "two", "two"); next.Instance == first.Instance {
		t.Errorf("instance %s answers after it was stopped", next.Instance)
	}
}

// TestBodyBreaksOff: if a request body breaks off, the client is at fault: the caller gets the
// reader's error, and the instance lives.
func TestBodyBreaksOff(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	first := r.mustCall("f", "/", "one", "one")
	for _, size := range []int{10, 100 << 10} { // in INVOKE, in DATA
		cut := io.MultiReader(strings.NewReader(strings.Repeat("z", size)), errReader{})
		if _, err := r.Invoke(t.Context(), "f", &Request{Path: "/hang", Body: cut, Length: -1}); !errors.Is(err, errCut) {
			t.Errorf("body that breaks off after %d bytes: %v; want the reader's error", size, err)
		}
		r.idle("f")
	}
	if last := r.mustCall("f", "/", "two", "two"); last.Instance != first.Instance {
		t.Errorf("instance %s answers after %s: the body's end has killed it", last.Instance, first.Instance)
	}
}

// TestClientGone: if the client disconnects, the engine cancels the event, and kills an instance
// that does not react.
func TestClientGone(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	for _, path := range []string{"/hang", "/stuck"} {
		r.mustCall("f", "/", "warm", "warm")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { _, _, err := r.call(ctx, "f", path, "x"); done <- err }()
		eventually(t, "the event to run", func() bool { f, err := r.Function("f"); return err == nil && f.Busy == 1 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", path, err)
		}
		r.idle("f")
	}
}

// TestRedeployKeepsEvents: a redeployment breaks off no event. A template with another id replaces
// the function only on request.
func TestRedeployKeepsEvents(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.mustCall("f", "/", "warm", "warm")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if i == 10 {
				r.deploy("f", func(c *image.Config) { c.Resources.Pids = 33 })
				return
			}
			if _, _, err := r.call(t.Context(), "f", "/slow", "x"); err != nil {
				t.Errorf("event during redeploy: %v", err)
			}
		})
	}
	wg.Wait()
	_, err := r.Deploy(t.Context(), "f", r.image("other", nil), DeployOptions{})
	if !errors.Is(err, ErrNameTaken) {
		t.Errorf("another template on the same name: %v; want ErrNameTaken", err)
	}
	if _, err := r.Deploy(t.Context(), "f", r.image("other", nil), DeployOptions{Replace: true}); err != nil {
		t.Error(err)
	}
	if err := r.RemoveFunction(t.Context(), "f"); err != nil {
		t.Error(err)
	}
	if _, _, err := r.call(t.Context(), "f", "/", ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed function answers: %v", err)
	}
}

func TestReopen(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.mustCall("f", "/", "a", "a")
	r.stop()
	if _, err := r.Invoke(t.Context(), "f", &Request{}); !errors.Is(err, ErrClosed) {
		t.Errorf("invoke after Close: %v", err)
	}
	r.start(Config{})
	r.mustCall("f", "/", "b", "b")
}

func TestDrain(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	body, write := io.Pipe()
	done, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		resp, err := r.Invoke(t.Context(), "f", &Request{Method: "POST", Path: "/slurp", Body: body, Length: -1})
		if err == nil {
			err = resp.Body.Close()
		}
		done <- err
	}()
	eventually(t, "the event to run", func() bool { f, err := r.Function("f"); return err == nil && f.Busy == 1 })
	go func() { closed <- r.Close(t.Context()) }()
	<-r.Closed()
	if err := errors.Join(write.Close(), <-done); err != nil {
		t.Errorf("event in flight during a graceful stop: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestLogs(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	ctx, stop := context.WithCancel(t.Context())
	followed := make(chan live.LogLine, 16)
	ended := make(chan error)
	go func() {
		ended <- r.Logs(ctx, "f", live.LogOptions{Tail: -1, Follow: true}, func(l live.LogLine) error { followed <- l; return nil })
	}()
	r.mustCall("f", "/print", "x", "x")
	if l := <-followed; l.Text != "hello log" || l.Stream != "stdout" || l.Function != "f" || l.Sandbox == "" {
		t.Errorf("followed %+v", l)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	_, _, err := r.call(t.Context(), "f", "/fail", "")
	var fe *FunctionError
	if !errors.As(err, &fe) {
		t.Fatal(err)
	}
	var last live.LogLine
	if err := r.Logs(t.Context(), "f", live.LogOptions{Tail: 1}, func(l live.LogLine) error { last = l; return nil }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(last.Text, "went wrong") || last.Level != "error" || last.Invocation == "" {
		t.Errorf("last line %+v; want the failure with its invocation", last)
	}
}

// TestLogFlood: the log of a flooding function has a limit on disk, and the function continues.
func TestLogFlood(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	r := &rig{t: t, state: t.TempDir()}
	r.start(Config{LogBytes: 256 << 10, LogFiles: 2})
	r.deploy("f", func(c *image.Config) { c.Resources.Timeout = 2 * time.Minute }) // emulated machines are slow
	r.mustCall("f", "/flood", "x", "x")
	r.stop() // writes the rest of the output and ends the rotation
	var total int64
	entries, err := os.ReadDir(filepath.Join(r.state, "logs", "f"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if len(entries) != 3 || total > 3*(256<<10)+(128<<10) {
		t.Errorf("%d bytes of log in %d files", total, len(entries))
	}
}

func TestRun(t *testing.T) {
	r := open(t)
	img := r.image("tool", stdio)
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	result, err := r.Run(t.Context(), container.RunRequest{Image: "tool", Args: []string{"/function/fn"}, Env: []string{"FRE_PATH=/fail"}, Stderr: w, Trace: true})
	_ = w.Close()
	if err != nil || result.Code != 3 {
		t.Errorf("run: %+v, %v", result, err)
	}
	for i, step := range result.Trace {
		if i > 0 && step.Done < result.Trace[i-1].Done {
			t.Errorf("step %s was done before the one before it: %v", step.Name, result.Trace)
		}
	}
	if len(result.Trace) < 10 {
		t.Errorf("a %s start of %d steps: %v", result.Start, len(result.Trace), result.Trace)
	}
	if text, _ := io.ReadAll(out); string(text) != "went wrong\n" {
		t.Errorf("stderr %q", text)
	}
	var se *sandbox.StartError
	if _, err := r.Run(t.Context(), container.RunRequest{Image: string(img.Digest), Args: []string{"nosuch"}}); !errors.As(err, &se) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("run of a missing command: %v", err)
	}
}

// TestRunTenant: a tenant's name is a directory's name and cannot lead elsewhere.
func TestRunTenant(t *testing.T) {
	r := open(t)
	r.image("tool", stdio)
	for _, tenant := range []string{"../escaped", "a/b", "..", "_build", "A"} {
		var field *template.FieldError
		_, err := r.Run(t.Context(), container.RunRequest{Image: "tool", Args: []string{"/function/fn"}, Tenant: tenant})
		if !errors.As(err, &field) || field.Field != "tenant" {
			t.Errorf("tenant %q: %v", tenant, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(r.state, "tenants")); err != nil || len(entries) != 0 {
		t.Errorf("tenants/ holds %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(r.state, "escaped")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("made outside of tenants/: %v", err)
	}
}

// TestBuildStep: programs of packages run sandboxed during installation, with the host's network
// only if the step asks for it.
func TestBuildStep(t *testing.T) {
	r := open(t)
	rootfs := r.store.Rootfs(r.image("tool", stdio).Digest)
	for _, network := range []bool{false, true} {
		var out bytes.Buffer
		err := r.cfg.Builder.Run.Run(t.Context(), image.Command{
			Rootfs: rootfs, Args: []string{"/function/fn"}, Env: []string{"FRE_PATH=/whoami"}, Network: network, Stdout: &out,
		})
		if err != nil {
			t.Fatal(err)
		}
		var uid, links int
		var caps string
		if _, err := fmt.Sscan(out.String(), &uid, &links, &caps); err != nil {
			t.Fatalf("%q: %v", out.String(), err)
		}
		host, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if network {
			want = len(host)
		}
		if uid == 0 || links != want || strings.Trim(caps, "0") != "" {
			t.Errorf("network %v: uid %d, %d interfaces, capabilities %s; want a user without any, %d interfaces", network, uid, links, caps, want)
		}
	}
	var exit *image.ExitError
	err := r.cfg.Builder.Run.Run(t.Context(), image.Command{Rootfs: rootfs, Args: []string{"/function/fn"}, Env: []string{"FRE_PATH=/fail"}})
	if !errors.As(err, &exit) || exit.Status != 3 || !strings.Contains(exit.Output, "went wrong") {
		t.Errorf("failing step: %v", err)
	}
}

// TestBuildStepFills: the engine ends a build step before the step fills the disk.
func TestBuildStepFills(t *testing.T) {
	r := open(t)
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("fre-engine-test", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	step := image.Command{
		Rootfs: r.store.Rootfs(r.image("tool", stdio).Digest), Args: []string{"/function/fn"}, Env: []string{"FRE_PATH=/fill"},
		Binds: []image.Bind{{Source: dir, Target: "/work", Writable: true}},
	}
	for _, when := range []string{"while it runs", "before it starts"} {
		if err := r.cfg.Builder.Run.Run(t.Context(), step); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: error %v, want ENOSPC", when, err)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bavail == 0 {
		t.Errorf("%d blocks are left, %v; want some", st.Bavail, err)
	}
}

// idle waits until no instance of a function has an event. The instance of a cancelled event
// notices the end a moment later, and takes no other event meanwhile.
func (r *rig) idle(name string) {
	r.t.Helper()
	eventually(r.t, "the instances to be free or gone", func() bool { f, err := r.Function(name); return err == nil && f.Busy == 0 })
}

// eventually waits for a state that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
