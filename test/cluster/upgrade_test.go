package cluster_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// A rolling upgrade of three nodes by docs/cluster.md loses no event. Every call gets an answer or
// a refusal with Retry-After, every acknowledged event runs, and nodes of both versions work
// together meanwhile.
func TestRollingUpgrade(t *testing.T) {
	w := newWorld(t)
	const before = "v0.0.1-before"
	after := w.bin
	w.bin = buildVersion(t, w.dir, before)
	a := w.add(t, "a", functions(t)...)
	b, c := w.add(t, "b"), w.add(t, "c")
	for _, n := range w.nodes {
		n.sees(t, "a=ready", "b=ready", "c=ready")
	}
	for _, f := range []string{"fn", "slow"} {
		a.cli(t, "deploy", "--image", f+":1", "--name", f)
		for _, n := range w.nodes {
			n.has(t, f, 1)
		}
	}
	is := versions(t, a)["a"]
	if is != before {
		t.Fatalf("node a is of version %q, want %q", is, before)
	}

	l := startLoad(t, w.nodes)
	for _, n := range w.nodes {
		l.awaitServed(t, n)
	}
	for i, n := range w.nodes {
		other := w.nodes[(i+1)%len(w.nodes)]
		other.cli(t, "nodes", "drain", n.name)
		l.awaitServed(t, n) // by other nodes, which get the drained node's calls
		l.out(n)            // load balancers watch /healthz
		l.awaitAlone(t, n)

		ctx, cancel := context.WithTimeout(t.Context(), within)
		err := n.Stop(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		n.install(t, after)
		// The start waits for /healthz, which fails while a node drains.
		var undrained sync.WaitGroup
		undrained.Go(func() { undrain(t, other, n.name) })
		n.start()
		undrained.Wait()
		for _, m := range w.nodes {
			m.sees(t, "a=ready", "b=ready", "c=ready")
		}
		n.has(t, "slow", 1)

		for _, m := range w.nodes {
			old := 0
			all := versions(t, m)
			for _, v := range all {
				if v == before {
					old++
				}
			}
			if len(all) != 3 || old != 2-i || all[n.name] == before {
				t.Errorf("%s after %s was replaced: fre nodes says %v", m.name, n.name, all)
			}
		}
		l.in(n)
		l.awaitServed(t, n)
		// A deployment meanwhile reaches both versions.
		a.cli(t, "deploy", "--image", "fn:1", "--name", "fn")
		for _, m := range []*node{a, b, c} {
			m.has(t, "fn", i+2)
		}
	}
	ids := l.stop()
	attempts := a.done(t, ids)
	t.Logf("%d calls, %d of them refused; %d events, %d attempts", l.calls, l.refused, len(ids), attempts)
}

// buildVersion builds the program under test with another version number.
func buildVersion(t *testing.T, dir, version string) string {
	t.Helper()
	bin := filepath.Join(dir, "fre-"+version)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X main.release="+version, "-o", bin, "../../cmd/fre")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return bin
}

// versions returns each node's version as `fre nodes` on n shows it.
func versions(t *testing.T, n *node) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(n.cli(t, "nodes", "--format", "{{.Name}} {{.Version}}")) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = version
	}
	return all
}

// undrain waits until the node is back in the state drained, and ends the drain.
func undrain(t *testing.T, other *node, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	err := testdaemon.Until(ctx, func() error {
		all, err := other.api.Nodes().List(ctx)
		if err != nil {
			return err
		}
		for _, m := range all {
			if m.Name == name && m.State == "drained" {
				return nil
			}
		}
		return fmt.Errorf("%s is not back", name)
	})
	if err == nil {
		_, err = other.CLI(ctx, "nodes", "undrain", name)
	}
	if err != nil {
		t.Error(err)
	}
}

// load sends calls and events to the nodes in rotation, as clients behind a load balancer do.
type load struct {
	end     context.CancelFunc
	clients sync.WaitGroup

	mu       sync.Mutex
	rotation []*node
	under    map[*node]int // calls under way
	served   map[*node]int // good answers since awaitServed began
	next     int
	ids      map[string]bool // acknowledged events
	calls    int
	refused  int
}

// startLoad begins to send to all nodes, until stop or the end of the test.
func startLoad(t *testing.T, nodes []*node) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{end: cancel, rotation: append([]*node(nil), nodes...), under: map[*node]int{}, served: map[*node]int{}, ids: map[string]bool{}}
	t.Cleanup(func() { l.stop() })
	for range 4 {
		l.clients.Go(func() {
			for ctx.Err() == nil {
				l.one(ctx, t, "/function/fn")
				l.event(ctx)
				l.one(ctx, t, "/function/slow/wait?50ms") // keeps the pace
			}
		})
	}
	return l
}

// stop ends the load and returns the acknowledged events.
func (l *load) stop() map[string]bool {
	l.end()
	l.clients.Wait()
	return l.ids
}

// take returns the next node in turn; give reports the result.
func (l *load) take() *node {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.rotation[l.next%len(l.rotation)]
	l.next++
	l.under[n]++
	return n
}

func (l *load) give(n *node, well bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.under[n]--
	if well {
		l.served[n]++
	}
}

// one calls a function. It fails the test unless the call gets an answer or a documented refusal:
// 429 or 503 with Retry-After.
func (l *load) one(ctx context.Context, t *testing.T, path string) {
	t.Helper()
	n := l.take()
	well := false
	defer func() { l.give(n, well) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.URL(path), strings.NewReader("x"))
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := n.w.client.Do(req)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close() // the body was read
	}
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	switch {
	case err != nil:
		t.Errorf("%s%s: %v", n.name, path, err)
	case resp.StatusCode == http.StatusOK:
		well = true
	case (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable) && resp.Header.Get("Retry-After") != "":
		l.refused++
	default:
		t.Errorf("%s%s: %s: %s", n.name, path, resp.Status, body)
	}
}

// event publishes an asynchronous event.
func (l *load) event(ctx context.Context) {
	n := l.take()
	id := n.publish(ctx, "fn", "x")
	l.give(n, false)
	if id != "" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ids[id] = true
	}
}

// awaitServed waits until a node has answered ten more calls.
func (l *load) awaitServed(t *testing.T, n *node) {
	t.Helper()
	l.mu.Lock()
	l.served[n] = 0
	l.mu.Unlock()
	n.w.until(t, n.name+" answers", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.served[n] < 10 {
			return fmt.Errorf("it has answered %d calls", l.served[n])
		}
		return nil
	})
}

// out takes a node out of the rotation, and in puts it back.
func (l *load) out(n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var left []*node
	for _, m := range l.rotation {
		if m != n {
			left = append(left, m)
		}
	}
	l.rotation = left
}

func (l *load) in(n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rotation = append(l.rotation, n)
}

// awaitAlone waits until a node has no call under way.
func (l *load) awaitAlone(t *testing.T, n *node) {
	t.Helper()
	n.w.until(t, "no client of "+n.name, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.under[n] > 0 {
			return fmt.Errorf("%d calls are under way", l.under[n])
		}
		return nil
	})
}
