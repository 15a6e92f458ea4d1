package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// answers returns the status of a function's answer to a call with a token, and the node that got
// the call by forwarding.
func (n *node) answers(t *testing.T, function, token string) (status int, forwarded string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.URL("/function/"+function), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := n.w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("X-Fre-Node")
}

// Tenants, tokens and secrets made on one node work on all nodes. A revoked token is refused
// everywhere, also by a node that was dead meanwhile. A node that is cut off uses its own copy and
// makes or revokes no tokens. A node without the cluster's key has secrets of its own, and `fre
// secret ls` says so.
func TestTenantsOfNodes(t *testing.T) {
	w := newWorld(t)
	w.keyFile, w.extra = filepath.Join(w.dir, "shared.key"), "access: {invoke: token}\n"
	key := fmt.Sprintf("%s %s\n", strings.Repeat("a", 16), strings.Repeat("b", 64))
	if err := os.WriteFile(w.keyFile, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	all := functions(t)
	needs := all[0]
	needs.Name, needs.Config.Secrets = "needs", []string{"password"}
	a, b := w.add(t, "a", append(all, needs)...), w.add(t, "b")
	a.sees(t, "a=ready", "b=ready")

	value := filepath.Join(w.dir, "value")
	if err := os.WriteFile(value, []byte("open sesame"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.cli(t, "secret", "create", "password", "--from-file", value)
	a.cli(t, "deploy", "--image", "fn:1", "--name", "fn")
	a.cli(t, "deploy", "--image", "needs:1", "--name", "needs")
	b.has(t, "fn", 1)
	b.has(t, "needs", 1) // the node has opened the secret
	a.cli(t, "tenant", "create", "acme", "--instances", "3")
	token := func(n *node, name string) (id, text string) {
		t.Helper()
		text = strings.TrimSpace(n.cli(t, "token", "create", name, "--tenant", "default", "--scopes", "invoke"))
		return strings.Split(text, "_")[1], text
	}
	id, text := token(a, "ci")
	_, kept := token(b, "kept")
	for _, n := range []*node{a, b} {
		for _, good := range []string{text, kept} {
			n.w.until(t, "the token is good at "+n.name, func() error {
				if status, _ := n.answers(t, "fn", good); status != http.StatusOK {
					return fmt.Errorf("%d", status)
				}
				return nil
			})
		}
		if status, forwarded := n.answers(t, "needs", text); status != http.StatusOK || forwarded != "" {
			t.Errorf("%s: a function with a secret: %d of node %q", n.name, status, forwarded)
		}
		if status, _ := n.answers(t, "fn", text[:len(text)-4]+"AAAA"); status != http.StatusUnauthorized {
			t.Errorf("%s: a token of nobody's: %d", n.name, status)
		}
	}
	if out := b.cli(t, "tenant", "ls", "-q"); !strings.Contains(out, "acme") {
		t.Errorf("tenants of b: %q", out)
	}
	if out := a.cli(t, "secret", "ls"); !strings.Contains(out, "password") || strings.Contains(out, "ONLY AT") {
		t.Errorf("secrets of a: %q", out)
	}

	b.kill()
	a.cli(t, "token", "rm", id)
	if status, _ := a.answers(t, "fn", text); status != http.StatusUnauthorized {
		t.Errorf("a revoked token where it was revoked: %d", status)
	}
	b.start()
	if status, _ := b.answers(t, "fn", text); status != http.StatusUnauthorized { // the node's first answer
		t.Errorf("a revoked token at a node that was dead meanwhile: %d", status)
	}
	if status, _ := b.answers(t, "needs", kept); status != http.StatusOK {
		t.Errorf("a good token at a node that was dead: %d", status)
	}
	a.sees(t, "a=ready", "b=ready")

	second, text := token(b, "second")
	a.w.until(t, "it is good at a", func() error {
		if status, _ := a.answers(t, "fn", text); status != http.StatusOK {
			return fmt.Errorf("%d", status)
		}
		return nil
	})
	b.cli(t, "token", "rm", second)
	a.w.until(t, "it is refused at a", func() error {
		if status, _ := a.answers(t, "fn", text); status != http.StatusUnauthorized {
			return fmt.Errorf("%d", status)
		}
		return nil
	})

	b.cut(t)
	b.sees(t, "a=unknown", "b=partitioned")
	for _, args := range [][]string{{"token", "create", "x", "--tenant", "default", "--scopes", "invoke"}, {"tenant", "create", "new"}, {"secret", "rm", "password"}} {
		var failed *testdaemon.CommandError
		if _, err := b.CLI(context.WithoutCancel(t.Context()), args...); !errors.As(err, &failed) || !strings.Contains(failed.Stderr, "cannot reach the other nodes") && !strings.Contains(failed.Stderr, "reads the secret") {
			t.Errorf("%v at a node that is cut off: %v", args, err)
		}
	}
	if out := b.cli(t, "token", "ls"); !strings.Contains(out, "kept") {
		t.Errorf("tokens of a node that is cut off: %q", out)
	}
	b.mend(t)
	b.sees(t, "a=ready", "b=ready")

	// Without the key a node has the tokens but not the secrets; a secret made there stays there.
	w.keyFile = ""
	c := w.add(t, "c")
	c.has(t, "fn", 1)
	if status, _ := c.answers(t, "fn", kept); status != http.StatusOK {
		t.Errorf("a token at a node without the key: %d", status)
	}
	if out := c.cli(t, "secret", "ls", "-q"); out != "" {
		t.Errorf("secrets of a node without the key: %q", out)
	}
	c.cli(t, "secret", "create", "password", "--from-file", value)
	if out := strings.Fields(c.cli(t, "secret", "ls")); len(out) < 5 || strings.Join(out[3:5], " ") != "ONLY AT" || out[len(out)-1] != "c" {
		t.Errorf("secrets of a node without the key, one made: %q", out)
	}
	c.has(t, "needs", 1) // impossible before
}
