package cluster

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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
)

// within only ends a test that hangs.
const within = 10 * time.Minute

// ttl is short, as some tests wait until a lease has run out. A test fails if a node is held up for
// longer.
const ttl = 5 * time.Second

// shelf is a registry: images by digest.
type shelf struct {
	mu   sync.Mutex
	all  map[store.Digest]*store.Image // by the registry's digest
	down bool
}

func (s *shelf) put(img *store.Image) (store.Digest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return "", oci.ErrRegistry
	}
	remote := store.Digest("sha256:" + strings.Repeat("f", 32) + strings.TrimPrefix(string(img.Digest), "sha256:")[32:])
	s.all[remote] = img
	return remote, nil
}

func (s *shelf) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// functions is an engine whose functions are Go functions. A record's Spec is a number.
type functions struct {
	mu      sync.Mutex
	shelf   *shelf
	images  map[store.Digest]*store.Image
	records map[string]*engine.Record
	room    int
	busy    int
	handle  func(ctx context.Context, r *engine.Request, body []byte) (*engine.Response, error)
	changed chan struct{} // receives after each Apply and Withdraw
}

func (e *functions) Hold() (release func()) { return func() {} }

func (e *functions) Function(name string) (*engine.Function, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.records[name] == nil {
		return nil, &engine.UnknownError{Function: name}
	}
	return &engine.Function{Name: name, Instances: 1, Busy: e.busy}, nil
}

func (e *functions) Functions() []*engine.Function {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*engine.Function
	for name := range e.records {
		out = append(out, &engine.Function{Name: name, Instances: 1, Busy: e.busy})
	}
	return out
}

func (e *functions) Front(name string) (engine.Front, bool) {
	_, err := e.Function(name)
	return engine.Front{Tenant: "default"}, err == nil
}

func (e *functions) Room(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.records[name] == nil {
		return 0
	}
	return e.room
}

func (e *functions) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func (e *functions) Stopping() bool { return false }

func (e *functions) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	if _, err := e.Function(name); err != nil {
		return nil, err
	}
	e.mu.Lock()
	full, handle := e.room <= 0, e.handle
	e.mu.Unlock()
	if full {
		return nil, engine.ErrOverloaded
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	return handle(ctx, r, body)
}

func (e *functions) Records() ([]*engine.Record, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*engine.Record
	for _, r := range e.records {
		out = append(out, r)
	}
	return out, nil
}

func (e *functions) Apply(_ context.Context, r *engine.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, img := range r.Images[:r.Serving] {
		if e.images[img] == nil {
			return fmt.Errorf("image %s: %w", img, fs.ErrNotExist)
		}
	}
	e.records[r.Name] = r
	e.tell()
	return nil
}

func (e *functions) Withdraw(_ context.Context, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.records, name)
	e.tell()
	return nil
}

func (e *functions) tell() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

func (e *functions) Image(ref string) (*store.Image, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if img := e.images[store.Digest(ref)]; img != nil {
		return img, nil
	}
	return nil, fs.ErrNotExist
}

func (e *functions) Pull(_ context.Context, ref, _ string, _ *oci.Auth, _ func(image.Progress)) (*store.Image, oci.Remote, error) {
	_, digest, _ := strings.Cut(ref, "@")
	e.shelf.mu.Lock()
	img, down := e.shelf.all[store.Digest(digest)], e.shelf.down
	e.shelf.mu.Unlock()
	if img == nil || down {
		return nil, oci.Remote{}, oci.ErrRegistry
	}
	e.set(func() { e.images[img.Digest] = img })
	return img, oci.Remote{Digest: store.Digest(digest)}, nil
}

func (e *functions) Push(_ context.Context, ref, to string, _ *oci.Auth, _ oci.PushOptions, _ func(image.Progress)) (oci.Remote, error) {
	if _, err := oci.Host(to); err != nil {
		return oci.Remote{}, err
	}
	img, err := e.Image(ref)
	if err != nil {
		return oci.Remote{}, err
	}
	digest, err := e.shelf.put(img)
	return oci.Remote{Digest: digest}, err
}

// has waits until the engine has a function with this spec, or, for "", has none.
func (e *functions) has(t *testing.T, name, spec string) {
	t.Helper()
	timeout := time.After(within)
	for {
		e.mu.Lock()
		r := e.records[name]
		e.mu.Unlock()
		if r == nil && spec == "" || r != nil && string(r.Spec) == spec {
			return
		}
		select {
		case <-e.changed:
		case <-timeout:
			t.Fatalf("function %s: got %v, want %q", name, r, spec)
		}
	}
}

// digestOf makes a digest from a letter.
func digestOf(letter string) store.Digest {
	return store.Digest("sha256:" + strings.Repeat(letter, 64))
}

// world is a NATS server, a registry and the nodes on both.
type world struct {
	t     *testing.T
	opts  natsserver.Options
	nats  *natsserver.Server
	shelf *shelf
}

func newWorld(t *testing.T) *world {
	t.Helper()
	fretest.CheckLeaks(t)
	w := &world{
		t: t, shelf: &shelf{all: map[store.Digest]*store.Image{}},
		opts: natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true},
	}
	w.startNATS()
	w.opts.Port = w.nats.Addr().(*net.TCPAddr).Port
	t.Cleanup(w.stopNATS)
	return w
}

func (w *world) startNATS() {
	w.t.Helper()
	opts := w.opts
	ns, err := natsserver.NewServer(&opts)
	if err != nil {
		w.t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(within) {
		w.t.Fatal("NATS does not start")
	}
	w.nats = ns
}

func (w *world) stopNATS() {
	w.nats.Shutdown()
	w.nats.WaitForShutdown()
}

func (w *world) config(name string) Config {
	w.t.Helper()
	conn, err := nats.Connect(w.nats.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1), nats.Timeout(within))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(conn.Close)
	return Config{
		Name: name, Registry: "registry.example.org/fre", Dir: w.t.TempDir(), Conn: conn, TTL: ttl, Version: "test",
		Log: slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name),
	}
}

// node is a Node that has joined, with its engine.
type node struct {
	*Node
	e *functions
}

func (w *world) engine(name string) *functions {
	return &functions{
		shelf: w.shelf, images: map[store.Digest]*store.Image{}, records: map[string]*engine.Record{}, room: 8, changed: make(chan struct{}, 1),
		handle: func(_ context.Context, _ *engine.Request, body []byte) (*engine.Response, error) {
			return answer([]byte(name + ":" + string(body))), nil
		},
	}
}

func answer(body []byte) *engine.Response {
	return &engine.Response{Status: 200, Size: int64(len(body)), Bytes: body, Body: io.NopCloser(bytes.NewReader(body))}
}

func (w *world) join(name string) *node { return w.joinWith(w.config(name), w.engine(name)) }

func (w *world) joinWith(cfg Config, e *functions) *node {
	w.t.Helper()
	n, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.close(n) })
	if err := n.Join(w.t.Context(), e); err != nil {
		w.t.Fatal(err)
	}
	return &node{n, e}
}

func (w *world) close(n *Node) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		w.t.Error(err)
	}
}

// until polls for a state.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	for !is() {
		if !sleep(ctx, 5*time.Millisecond) {
			w.t.Fatalf("it does not come: %s", what)
		}
	}
}

// knows waits until a node sees the nodes in these states, as NAME=STATE.
func (w *world) knows(n *node, states ...string) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s sees %v", n.cfg.Name, states), func() bool {
		var got []string
		for _, m := range n.Nodes() {
			got = append(got, m.Name+"="+string(m.State))
		}
		return slices.Equal(got, states)
	})
}

// deploy puts a function on a node as an engine does.
func (n *node) deploy(ctx context.Context, name, spec string, images ...store.Digest) error {
	for _, digest := range images {
		img := &store.Image{Digest: digest}
		n.e.set(func() { n.e.images[digest] = img })
		if err := n.Prepare(ctx, img); err != nil {
			return err
		}
	}
	r := &engine.Record{Name: name, Spec: json.RawMessage(spec), Images: images, Serving: len(images), Front: engine.Front{Tenant: "default"}}
	if err := n.Commit(ctx, r); err != nil {
		return err
	}
	return n.e.Apply(ctx, r)
}

func (w *world) deploy(n *node, name, spec string, images ...store.Digest) {
	w.t.Helper()
	w.until("the table is read", func() bool {
		select {
		case <-n.caught:
			return true
		default:
			return false
		}
	})
	if err := n.deploy(w.t.Context(), name, spec, images...); err != nil {
		w.t.Fatal(err)
	}
}

func request(body string) *engine.Request {
	return &engine.Request{Method: "POST", Path: "/", Body: strings.NewReader(body), Length: int64(len(body))}
}

func read(t *testing.T, resp *engine.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// A deployment, a change or a removal on one node applies on all nodes, including nodes that join
// later. The images travel through the registry.
func TestDeployedEverywhere(t *testing.T) {
	w := newWorld(t)
	a, b := w.join("a"), w.join("b")
	w.deploy(a, "f", "1", digestOf("1"))
	b.e.has(t, "f", "1")
	w.until("b is that far", func() bool { return len(b.catalogue.lacking()) == 0 })
	w.deploy(b, "f", "2", digestOf("1"), digestOf("2"))
	a.e.has(t, "f", "2")
	c := w.join("c")
	c.e.has(t, "f", "2")
	if _, err := c.e.Image(string(digestOf("2"))); err != nil {
		t.Errorf("image at a node that came later: %v", err)
	}
	w.until("a is that far", func() bool { return len(a.catalogue.lacking()) == 0 })
	if err := a.Commit(t.Context(), &engine.Record{Name: "f", Removed: true}); err != nil {
		t.Fatal(err)
	}
	b.e.has(t, "f", "")
	c.e.has(t, "f", "")
	w.deploy(a, "f", "3", digestOf("1"))
	b.e.has(t, "f", "3")
}

// If two nodes change a function at the same time, one node is refused and applies the other's
// change.
func TestConflict(t *testing.T) {
	w := newWorld(t)
	nodes := []*node{w.join("a"), w.join("b")}
	w.deploy(nodes[0], "f", "0", digestOf("1"))
	nodes[1].e.has(t, "f", "0")
	for round := 1; round <= 20; round++ {
		w.until("both are that far", func() bool { return len(nodes[0].catalogue.lacking())+len(nodes[1].catalogue.lacking()) == 0 })
		var all sync.WaitGroup
		errs := make([]error, 2)
		for i, n := range nodes {
			all.Go(func() { errs[i] = n.deploy(t.Context(), "f", fmt.Sprintf("%d%d", round, i), digestOf("1")) })
		}
		all.Wait()
		won := slices.Index(errs, nil)
		if won < 0 {
			t.Fatalf("round %d: both are refused: %v", round, errs)
		}
		if other := errs[1-won]; other != nil && !errors.Is(other, ErrConflict) {
			t.Fatalf("round %d: %v", round, other)
		} else if other == nil { // the change came after the first was in force there
			continue
		}
		for _, n := range nodes {
			n.e.has(t, "f", fmt.Sprintf("%d%d", round, won))
		}
	}
}

// A node that joins with a function shares the function with all nodes. If the table has the
// function already, the table wins.
func TestContribute(t *testing.T) {
	w := newWorld(t)
	e := w.engine("a")
	e.images[digestOf("1")] = &store.Image{Digest: digestOf("1")}
	for _, name := range []string{"f", "g"} {
		e.records[name] = &engine.Record{Name: name, Spec: json.RawMessage("1"), Images: []store.Digest{digestOf("1")}, Serving: 1}
	}
	b := w.join("b")
	w.deploy(b, "g", "9", digestOf("2"))
	a := w.joinWith(w.config("a"), e)
	b.e.has(t, "f", "1")
	a.e.has(t, "g", "9")
}

// A node pulls a missing image when the registry is back, or earlier on request.
func TestRegistryDown(t *testing.T) {
	w := newWorld(t)
	a := w.join("a")
	w.deploy(a, "f", "1", digestOf("1"))
	w.shelf.setDown(true)
	b := w.join("b")
	w.until("b lacks f", func() bool { return slices.Equal(b.catalogue.lacking(), []string{"f"}) })
	w.knows(b, "a=ready", "b=ready")
	resp, err := b.Invoke(t.Context(), "f", request("x"))
	if got := read(t, resp, err); got != "a:x" {
		t.Errorf("a function that is not here yet: %q", got)
	}
	w.until("b says what it is that keeps it from changing f", func() bool {
		err := b.Commit(t.Context(), &engine.Record{Name: "f", Removed: true})
		return errors.Is(err, ErrConflict) && strings.Contains(err.Error(), oci.ErrRegistry.Error())
	})
	if err := a.deploy(t.Context(), "g", "1", digestOf("3")); !errors.Is(err, oci.ErrRegistry) {
		t.Errorf("a deployment without a registry: %v", err)
	}
	w.shelf.setDown(false)
	b.e.has(t, "f", "1")
}

// Of two nodes with one name the second is refused, unless the first has died and the second uses
// the dead node's state directory. A lease expires by itself.
func TestName(t *testing.T) {
	w := newWorld(t)
	cfg := w.config("a")
	a := w.joinWith(cfg, w.engine("a"))
	second, err := New(w.config("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.close(second)
	if err := second.Join(t.Context(), w.engine("a")); !errors.Is(err, ErrNameTaken) {
		t.Fatalf("a second node: %v", err)
	}
	// Killed: the node returns nothing.
	a.cfg.Conn.Close()
	again := w.config("a")
	again.Dir = cfg.Dir
	w.joinWith(again, w.engine("a"))
}

// A node reports the loss of its name if another node has taken the lease during a long partition.
func TestNameLost(t *testing.T) {
	w := newWorld(t)
	a := w.join("a")
	other := Info{Protocol: Protocol, Name: "a", Identity: "other", Boot: "other"}
	raw, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			if _, err := a.nodes.Put(t.Context(), "a", raw); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(a.cfg.TTL / 64):
			}
		}
	})
	w.until("it is no node", func() bool { return errors.Is(a.reachable(), ErrNameTaken) })
	if err := a.deploy(t.Context(), "f", "1", digestOf("1")); !errors.Is(err, ErrNameTaken) {
		t.Errorf("a deployment there: %v", err)
	}
	close(stop)
	all.Wait()
	w.until("it has its name again", func() bool { return a.reachable() == nil })
}

// Nodes with adjacent protocol versions work together; nodes two versions apart refuse to.
func TestSkew(t *testing.T) {
	w := newWorld(t)
	w.join("a")
	cfg := w.config("b")
	cfg.protocol = Protocol + 1
	b := w.joinWith(cfg, w.engine("b"))
	w.knows(b, "a=ready", "b=ready")
	cfg = w.config("c")
	cfg.protocol = Protocol + 2
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close(c)
	if err := c.Join(t.Context(), w.engine("c")); !errors.Is(err, ErrSkew) || !strings.Contains(err.Error(), "node a") {
		t.Errorf("two versions further: %v", err)
	}
}

// A request that a full node cannot take runs once at another node. A request that no node can take
// is refused as on a single node. Errors arrive unchanged.
func TestForward(t *testing.T) {
	w := newWorld(t)
	a, b := w.join("a"), w.join("b")
	w.deploy(a, "f", "1", digestOf("1"))
	b.e.has(t, "f", "1")
	w.knows(a, "a=ready", "b=ready")
	call := func(body string) (*engine.Response, error) { return a.Invoke(t.Context(), "f", request(body)) }
	check := func(what, body, want string) {
		t.Helper()
		resp, err := call(body)
		if got := read(t, resp, err); got != want {
			t.Errorf("%s: got %.80q, want %.80q", what, got, want)
		}
	}
	check("with room", "x", "a:x")
	a.e.set(func() { a.e.room = 0 })
	check("full", "x", "b:x")
	check("full, with a body of half a megabyte", strings.Repeat("x", inline), "b:"+strings.Repeat("x", inline))
	if _, err := call(strings.Repeat("x", inline+1)); !errors.Is(err, engine.ErrOverloaded) {
		t.Errorf("a body that is not forwarded: %v", err)
	}
	for _, fault := range []error{
		&engine.FunctionError{Type: "E", Message: "m"}, &engine.CrashError{Reason: "died"}, engine.ErrTimeout, &live.QuotaError{Tenant: "default", What: "memory", Limit: 1}, errors.New("other"),
		&engine.StepError{Failure: failure.Overloaded, Err: engine.ErrOverloaded}, &engine.LoopError{Chain: "a → a", Why: "no end"},
	} {
		b.e.set(func() {
			b.e.handle = func(context.Context, *engine.Request, []byte) (*engine.Response, error) { return nil, fault }
		})
		_, err := call("x")
		var quota *live.QuotaError
		switch want := fault.Error(); {
		case err == nil:
			t.Errorf("%v: no error", fault)
		case errors.As(fault, &quota): // no further node exists to ask
			if !errors.Is(err, engine.ErrOverloaded) {
				t.Errorf("%v: %v", fault, err)
			}
		case !strings.HasSuffix(err.Error(), want) || errors.Is(fault, engine.ErrTimeout) != errors.Is(err, engine.ErrTimeout):
			t.Errorf("got %v, want %s", err, want)
		}
	}
	b.e.set(func() { b.e.room = 0 })
	if _, err := call("x"); !errors.Is(err, engine.ErrOverloaded) {
		t.Errorf("all full: %v", err)
	}
	if resp, err := a.Invoke(t.Context(), "none", request("x")); err == nil {
		t.Errorf("no such function: %v", resp.Status)
	}
}

// Forwarded answers of any size arrive unchanged, as fast as the client reads. They end if the
// client disconnects or the node is lost.
func TestForwardStream(t *testing.T) {
	w := newWorld(t)
	a, b := w.join("a"), w.join("b")
	w.deploy(a, "f", "1", digestOf("1"))
	b.e.has(t, "f", "1")
	w.knows(a, "a=ready", "b=ready")
	large := make([]byte, 20<<20)
	for i := range large {
		large[i] = byte(i * 7 >> 3)
	}
	counted := &counter{r: bytes.NewReader(large)}
	closed := make(chan struct{})
	a.e.set(func() { a.e.room = 0 })
	b.e.set(func() {
		b.e.handle = func(context.Context, *engine.Request, []byte) (*engine.Response, error) {
			return &engine.Response{Status: 201, Header: [][2]string{{"X-A", "b"}}, Size: int64(len(large)), Body: body{counted, closed}}, nil
		}
	})
	resp, err := a.Invoke(t.Context(), "f", request("x"))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status != 201 || !slices.Contains(resp.Header, [2]string{"X-A", "b"}) || resp.Node != "b" {
		t.Errorf("head: %+v", resp)
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, large) {
		t.Errorf("20 MiB: %d bytes, %v", len(got), err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	<-closed
	// A client that reads nothing blocks only the window.
	counted.reset(large)
	closed = make(chan struct{})
	if resp, err = a.Invoke(t.Context(), "f", request("x")); err != nil {
		t.Fatal(err)
	}
	w.until("the window is full", func() bool { return counted.read() == (window+1)*chunkSize })
	if err := resp.Body.Close(); err != nil { // and disconnects
		t.Error(err)
	}
	<-closed
	w.until("it has ended there", func() bool { return b.underWay() == 0 })
	// A node is lost during an answer.
	counted.reset(large)
	closed = make(chan struct{})
	if resp, err = a.Invoke(t.Context(), "f", request("x")); err != nil {
		t.Fatal(err)
	}
	b.cfg.Conn.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	var crash *engine.CrashError
	if !errors.As(err, &crash) || !strings.Contains(err.Error(), "node b") {
		t.Errorf("a node that is lost: %v", err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	w.knows(a, "a=ready", "b=lost")
}

type counter struct {
	mu sync.Mutex
	r  io.Reader
	n  int
}

func (c *counter) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

func (c *counter) read() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *counter) reset(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.r, c.n = bytes.NewReader(b), 0
}

type body struct {
	io.Reader
	closed chan struct{}
}

func (b body) Close() error {
	close(b.closed)
	return nil
}

// Without NATS a node serves its functions, and refuses deployments with the reason. When NATS is
// back, the node catches up.
func TestPartition(t *testing.T) {
	w := newWorld(t)
	a, b := w.join("a"), w.join("b")
	w.deploy(a, "f", "1", digestOf("1"))
	b.e.has(t, "f", "1")
	w.stopNATS()
	w.knows(a, "a=partitioned", "b=unknown")
	resp, err := a.Invoke(t.Context(), "f", request("x"))
	if got := read(t, resp, err); got != "a:x" {
		t.Errorf("while partitioned: %q", got)
	}
	if err := a.deploy(t.Context(), "f", "2", digestOf("2")); !errors.Is(err, ErrPartitioned) {
		t.Errorf("a deployment while partitioned: %v", err)
	}
	if err := a.Drain(t.Context(), "b"); !errors.Is(err, ErrPartitioned) {
		t.Errorf("drain while partitioned: %v", err)
	}
	if !a.Elsewhere("unknown") {
		t.Error("a partitioned node takes events of what it does not know for dead")
	}
	w.startNATS()
	w.knows(a, "a=ready", "b=ready")
	w.deploy(a, "f", "3", digestOf("2"))
	b.e.has(t, "f", "3")
	if a.Elsewhere("unknown") {
		t.Error("a function that is nowhere is elsewhere")
	}
}

// A node that starts without NATS joins when NATS is available.
func TestJoinLate(t *testing.T) {
	w := newWorld(t)
	w.stopNATS()
	e := w.engine("a")
	a := w.joinWith(w.config("a"), e)
	w.knows(a, "a=partitioned")
	w.startNATS()
	b := w.join("b")
	w.deploy(b, "f", "1", digestOf("1"))
	e.has(t, "f", "1")
	w.knows(a, "a=ready", "b=ready")
}

// A draining node takes no new events, forwards arriving events, and reports the end of the drain,
// even after a restart.
func TestDrain(t *testing.T) {
	w := newWorld(t)
	cfg := w.config("a")
	a, b := w.joinWith(cfg, w.engine("a")), w.join("b")
	w.deploy(a, "f", "1", digestOf("1"))
	b.e.has(t, "f", "1")
	w.knows(b, "a=ready", "b=ready")
	a.e.set(func() { a.e.busy = 1 })
	if err := b.Drain(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	w.knows(b, "a=draining", "b=ready")
	if n := a.Local().Room("f"); n != 0 || b.Local().Room("f") == 0 {
		t.Errorf("room for events: %d", n)
	}
	if !a.Stopping() {
		t.Error("load balancers are not told")
	}
	resp, err := a.Invoke(t.Context(), "f", request("x"))
	if got := read(t, resp, err); got != "b:x" {
		t.Errorf("what comes to a node that drains: %q", got)
	}
	b.e.set(func() { b.e.room = 0 })
	if _, err := b.Invoke(t.Context(), "f", request("x")); !errors.Is(err, engine.ErrOverloaded) {
		t.Errorf("what another asks of a node that drains: %v", err)
	}
	if resp, err := a.Invoke(t.Context(), "f", request("x")); read(t, resp, err) != "a:x" {
		t.Error("what nobody else takes is refused")
	}
	a.e.set(func() { a.e.busy = 0 })
	w.knows(b, "a=drained", "b=ready")
	w.close(a.Node)
	w.knows(b, "b=ready")
	again := w.config("a")
	again.Dir = cfg.Dir
	w.joinWith(again, a.e)
	w.knows(b, "a=drained", "b=ready")
	if err := b.Undrain(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	w.knows(b, "a=ready", "b=ready")
	for _, err := range []error{b.Undrain(t.Context(), "a"), b.Drain(t.Context(), "nobody"), b.Undrain(t.Context(), "a.b")} {
		if !errors.Is(err, ErrNoNode) {
			t.Errorf("a node that is none: %v", err)
		}
	}
}

// TestCloseDuringRenewal: a node that stops during a renewal still gives its name back, even if
// NATS has taken the renewal. Its peers do not take the node for lost.
func TestCloseDuringRenewal(t *testing.T) {
	w := newWorld(t)
	cfg := w.config("a")
	cfg.TTL = time.Hour // no renewal corrects the revision
	a, b := w.joinWith(cfg, w.engine("a")), w.join("b")
	a.mu.Lock()
	a.revision += 100 // differs from the renewal's revision
	a.mu.Unlock()
	w.close(a.Node)
	if _, err := b.nodes.Get(t.Context(), "a"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the lease after a clean end: %v", err)
	}
}

// Forwarded events count as under way: the drain of a node and the node's stop wait for forwarded
// events.
func TestStopWithForwarded(t *testing.T) {
	w := newWorld(t)
	a, b := w.join("a"), w.join("b")
	w.deploy(a, "f", "1", digestOf("1"))
	b.e.has(t, "f", "1")
	w.knows(a, "a=ready", "b=ready")
	w.knows(b, "a=ready", "b=ready")
	a.e.set(func() { a.e.room = 0 })
	begun, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	b.e.set(func() {
		b.e.handle = func(context.Context, *engine.Request, []byte) (*engine.Response, error) {
			close(begun)
			<-goOn
			return answer([]byte("b")), nil
		}
	})
	answered := make(chan string)
	go func() {
		resp, err := a.Invoke(t.Context(), "f", request("x"))
		answered <- read(t, resp, err)
	}()
	<-begun
	if err := b.Drain(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	w.knows(b, "a=draining", "b=ready")
	stopped := make(chan struct{})
	go func() {
		w.close(a.Node)
		close(stopped)
	}()
	w.until("it stops", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.closing
	})
	select {
	case got := <-answered:
		t.Errorf("before it is answered: %q", got)
	case <-stopped:
		t.Error("the stop does not wait")
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if got := <-answered; got != "b" {
		t.Errorf("got %q", got)
	}
	<-stopped
}

// A function's largest possible head passes between nodes, with any content. A larger head is the
// function's failure: the function has run, and no other node is asked.
func TestForwardLargeHead(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.join("a"), w.join("b"), w.join("c")
	w.deploy(a, "f", "1", digestOf("1"))
	for _, n := range []*node{b, c} {
		n.e.has(t, "f", "1")
	}
	w.knows(a, "a=ready", "b=ready", "c=ready")
	a.e.set(func() { a.e.room = 0 })
	var runs atomic.Int32
	for _, text := range []string{strings.Repeat("<&>", 70<<10), strings.Repeat("x", 400<<10)} {
		runs.Store(0)
		for _, n := range []*node{b, c} {
			n.e.set(func() {
				n.e.handle = func(_ context.Context, r *engine.Request, _ []byte) (*engine.Response, error) {
					runs.Add(1)
					resp := answer([]byte("small"))
					resp.Header = [][2]string{{"X-A", text}}
					resp.Bytes = nil // sends a stream
					return resp, nil
				}
			})
		}
		resp, err := a.Invoke(t.Context(), "f", request("x"))
		if fits := len(text) < 256<<10; fits {
			if got := read(t, resp, err); got != "small" || !slices.Contains(resp.Header, [2]string{"X-A", text}) {
				t.Errorf("%d bytes: %q", len(text), got)
			}
		} else if failed, ok := errors.AsType[*engine.FunctionError](err); !ok || failed.Type != "AnswerTooLarge" {
			t.Errorf("%d bytes: %v", len(text), err)
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("%d bytes: it ran %d times", len(text), n)
		}
		w.until("nobody has it any more", func() bool { return a.underWay()+b.underWay()+c.underWay() == 0 })
	}
}

// Ambiguous names are refused.
func TestNew(t *testing.T) {
	for _, bad := range []Config{
		{Name: "A", Registry: "r.example.org/fre"},
		{Name: "a.b", Registry: "r.example.org/fre"},
		{Name: "", Registry: "r.example.org/fre"},
		{Name: "a", Registry: "r.example.org"},
		{Name: "a", Registry: "r.example.org/F R E"},
		{Name: "a"},
	} {
		if _, err := New(bad); err == nil {
			t.Errorf("%q at %q is taken", bad.Name, bad.Registry)
		}
	}
}

// FuzzMessages: any message of another node is refused or understood.
func FuzzMessages(f *testing.F) {
	for _, seed := range []string{
		`{"Protocol":1,"Name":"a","Identity":"i","Boot":"b","State":"ready"}`, `{"Protocol":1,"Node":"a","Record":{"Name":"f","Spec":{},"Images":[],"Serving":0}}`,
		`{"Protocol":1,"ID":"x","Function":"f","Method":"GET"}`, `{"Kind":"failed","Fault":{"Kind":"crash","Message":"m"}}`, `null`, `[]`, `{"Record":{"Serving":9}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if i, err := decodeInfo([]byte(raw)); err == nil && (!ValidName(i.Name) || i.Protocol < 1) {
			t.Errorf("node %+v", i)
		}
		if w, err := decodeRow("f", []byte(raw), Protocol); err == nil && (w.Record.Name != "f" || w.Record.Serving > len(w.Record.Images)) {
			t.Errorf("row %+v", w)
		}
		msg := &nats.Msg{Header: nats.Header{headWhat: []string{raw}}}
		var r reply
		if err := decodeHead(msg, &r); err == nil && r.Fault.err("a") == nil {
			t.Errorf("fault %+v is no error", r.Fault)
		}
		var a ask
		_ = decodeHead(msg, &a) // take checks the content
	})
}
