package cluster_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// Three nodes act as one engine: a deployment, split or removal on one node reaches all nodes. A
// node that is killed under load, cut off or drained loses no event. A second node with the same
// name is refused.
func TestThreeNodes(t *testing.T) {
	w := newWorld(t)
	a := w.add(t, "a", functions(t)...)
	b, c := w.add(t, "b"), w.add(t, "c")
	for _, n := range w.nodes {
		n.sees(t, "a=ready", "b=ready", "c=ready")
	}
	for _, f := range []string{"fn", "slow"} {
		a.cli(t, "deploy", "--image", f+":1", "--name", f)
	}
	t.Run("deployed on one, callable on all", func(t *testing.T) { deployed(t, a, b, c) })
	t.Run("full", func(t *testing.T) { full(t, a) })
	t.Run("name", func(t *testing.T) { sameName(t, w) })
	t.Run("drain", func(t *testing.T) { drain(t, a, b) })
	t.Run("partition", func(t *testing.T) { partition(t, a, c) })
	t.Run("kill", func(t *testing.T) { kill(t, a, b, c) })
}

func deployed(t *testing.T, a, b, c *node) {
	t.Helper()
	for _, n := range []*node{a, b, c} {
		// Until a node has the function, other nodes answer, and asynchronous events wait.
		if status, answer, _ := n.call(t, "/function/fn", "hello "+n.name); status != 200 || answer != "hello "+n.name {
			t.Errorf("%s: %d %q", n.name, status, answer)
		}
		n.has(t, "fn", 1)
		n.has(t, "slow", 1)
	}
	a.cli(t, "deploy", "--image", "fn:1", "--name", "fn", "--no-traffic")
	b.w.until(t, "b has it", func() error {
		r, err := b.api.Functions().Revisions(t.Context(), "fn")
		if err == nil && len(r.Revisions) != 2 {
			err = errors.New("it has not")
		}
		return err
	})
	b.cli(t, "function", "split", "fn", "1=50", "2=50")
	c.cli(t, "function", "alias", "fn", "stable=1")
	for _, n := range []*node{a, b, c} {
		n.w.until(t, n.name+" has split and alias", func() error {
			r, err := n.api.Functions().Revisions(t.Context(), "fn")
			if err == nil && (len(r.Revisions) != 2 || r.Revisions[0].Percent != 50 || len(r.Revisions[1].Aliases) != 1) {
				err = errors.New("it has not")
			}
			return err
		})
		if status, _, h := n.call(t, "/function/fn@stable", "x"); status != 200 || h.Get("X-Fre-Revision") != "1" {
			t.Errorf("%s: fn@stable: %d, revision %q", n.name, status, h.Get("X-Fre-Revision"))
		}
	}
	c.cli(t, "function", "rollback", "fn", "1")
	a.cli(t, "deploy", "--image", "fn:1", "--name", "gone")
	b.has(t, "gone", 1)
	b.cli(t, "function", "rm", "gone")
	for _, n := range []*node{a, c} {
		n.w.until(t, n.name+" has removed it", func() error {
			if status, _, _ := n.call(t, "/function/gone", ""); status != http.StatusNotFound {
				return errors.New("it has not")
			}
			return nil
		})
	}
}

// full: a node that is full of a function's events passes requests to another node.
func full(t *testing.T, a *node) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var held sync.WaitGroup
	for range 2 { // equal to instances.max
		held.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL("/function/slow/wait?15s"), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := a.w.client.Do(req); err == nil {
				_ = resp.Body.Close() // cancelled
			}
		})
	}
	defer held.Wait()
	defer cancel()
	a.w.until(t, "a is full", func() error {
		f, err := a.api.Functions().Get(t.Context(), "slow")
		if err == nil && f.Busy < 2 {
			err = errors.New("it is not")
		}
		return err
	})
	status, _, h := a.call(t, "/function/slow/wait?0s", "")
	if node := h.Get("X-Fre-Node"); status != 200 || node != "b" && node != "c" {
		t.Errorf("what a full node is asked: %d of node %q", status, node)
	}
}

// sameName starts a second node with the name of the first.
func sameName(t *testing.T, w *world) {
	t.Helper()
	second := *w.nodes[0]
	second.config.State += "-2"
	second.config.Socket += "-2"
	second.config.Listen = strings.TrimSuffix(second.config.Listen, "8080") + "8081"
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err := testdaemon.Start(ctx, second.config)
	if err == nil || !strings.Contains(err.Error(), "another node has the name") {
		t.Errorf("a second node a: %v", err)
	}
}

// drain drains a node under load, stops the node as an upgrade does, and starts it again.
func drain(t *testing.T, a, b *node) {
	t.Helper()
	ids := map[string]bool{}
	for range 20 {
		if id := b.publish(t.Context(), "fn", "x"); id != "" {
			ids[id] = true
		}
	}
	a.cli(t, "nodes", "drain", "b")
	a.sees(t, "a=ready", "b=drained", "c=ready")
	if status, _, _ := b.call(t, "/healthz", ""); status == 200 {
		t.Error("load balancers are not told")
	}
	if status, answer, h := b.call(t, "/function/fn", "x"); status != 200 || answer != "x" || h.Get("X-Fre-Node") == "" {
		t.Errorf("what a drained node is asked: %d %q of node %q", status, answer, h.Get("X-Fre-Node"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	a.sees(t, "a=ready", "c=ready")
	// undrain before the start, because the start waits for /healthz, which fails while a node
	// drains.
	a.cli(t, "nodes", "undrain", "b")
	b.start()
	a.sees(t, "a=ready", "b=ready", "c=ready")
	a.done(t, ids)
}

// partition cuts a node off and reconnects it.
func partition(t *testing.T, a, c *node) {
	t.Helper()
	c.sees(t, "a=ready", "b=ready", "c=ready")
	c.cut(t)
	c.sees(t, "a=unknown", "b=unknown", "c=partitioned")
	a.sees(t, "a=ready", "b=ready", "c=lost")
	// The node serves its functions; only the control socket still reaches the node.
	if out := c.cli(t, "invoke", "fn", "--data", "still here"); !strings.Contains(out, "still here") {
		t.Errorf("a partitioned node: %q", out)
	}
	var failed *testdaemon.CommandError
	if _, err := c.CLI(t.Context(), "function", "rollback", "fn", "1"); !errors.As(err, &failed) || !strings.Contains(failed.Stderr, "cannot reach the other nodes") {
		t.Errorf("a change at a partitioned node: %v", err)
	}
	a.cli(t, "deploy", "--image", "fn:1", "--name", "fn") // during the partition
	c.mend(t)
	c.sees(t, "a=ready", "b=ready", "c=ready")
	c.has(t, "fn", 3)
}

// kill kills a node of three under load: every acknowledged event runs, and waits for at most twice
// its time limit.
func kill(t *testing.T, a, b, c *node) {
	t.Helper()
	var mu sync.Mutex
	ids := map[string]bool{}
	load, stop := context.WithCancel(t.Context())
	defer stop()
	enough := make(chan struct{})
	var all sync.WaitGroup
	for i, n := range []*node{a, b, c, a, b, c} {
		path := "fn"
		if i < 3 {
			path = "slow/wait?200ms"
		}
		all.Go(func() {
			for load.Err() == nil {
				id := n.publish(load, path, "x") // "" if the node refuses or is dead
				mu.Lock()
				if id != "" && !ids[id] {
					if ids[id] = true; len(ids) == 150 {
						close(enough)
					}
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	b.kill()
	killed := time.Now()
	stop()
	all.Wait()
	attempts := a.done(t, ids)
	took := time.Since(killed)
	if took > 2*deadline {
		t.Errorf("some waited for %v, want at most %v", took, 2*deadline)
	}
	t.Logf("%d events, %d attempts, all done %v after the kill", len(ids), attempts, took)
	a.sees(t, "a=ready", "b=lost", "c=ready")
	b.start() // with the same name, at once
	a.sees(t, "a=ready", "b=ready", "c=ready")
}
