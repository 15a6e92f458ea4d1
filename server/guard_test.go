package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/servertest"
	"github.com/fre-engine/fre/store"
)

// remote is the control API over TLS, with a function a.acme and a b.other.
type remote struct {
	*httptest.Server
	t      *testing.T
	engine *servertest.Engine
	access *access.Access
	audit  string
}

func serveRemote(t *testing.T) *remote {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "access")
	a, err := access.Open(access.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	scratch, e := t.TempDir(), servertest.New()
	s := httptest.NewUnstartedServer(server.New(server.Config{
		Engine: e, Log: slog.New(slog.DiscardHandler), Access: a, Remote: true,
		Scratch: func() (string, error) { return os.MkdirTemp(scratch, "") }, //nolint:usetesting // the server removes it
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(func() {
		s.Close()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &remote{s, t, e, a, filepath.Join(dir, "audit.ndjson")}
	root := r.client(access.AllTenants, access.Admin)
	for name, tenant := range map[string]string{"a": "acme", "b": "other"} {
		r.deploy(root, name, tenant)
	}
	return r
}

func (r *remote) token(tenant string, scopes ...access.Scope) string {
	r.t.Helper()
	_, text, err := r.access.CreateToken(access.TokenOptions{Name: "test", Tenant: tenant, Scopes: scopes})
	if err != nil {
		r.t.Fatal(err)
	}
	return text
}

func (r *remote) client(tenant string, scopes ...access.Scope) *client.Client {
	r.t.Helper()
	return r.with(r.token(tenant, scopes...))
}

func (r *remote) with(token string) *client.Client {
	r.t.Helper()
	c, err := client.NewRemote(client.Remote{Host: r.URL, Token: token, TLS: r.Client().Transport.(*http.Transport).TLSClientConfig})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

func (r *remote) deploy(c *client.Client, name, tenant string) {
	r.t.Helper()
	if err := deployOf(r.t, c, name, tenant); err != nil {
		r.t.Fatal(err)
	}
}

func deployOf(t *testing.T, c *client.Client, name, tenant string) error {
	t.Helper()
	dir := templateDir(t, map[string]string{"fret.yaml": "id: " + name + "\nbase: python\nhandler: main.handle\ntenant: " + tenant + "\n", "main.py": name + tenant})
	_, err := c.Functions().DeployDir(t.Context(), dir, api.DeployRequest{}, nil, func(api.Progress) {})
	return err
}

func wantStatus(t *testing.T, what string, err error, status int) {
	t.Helper()
	var e *api.Error
	if status == 0 && err == nil {
		return
	}
	if !errors.As(err, &e) || e.Status != status {
		t.Errorf("%s: %v, want the status %d", what, err, status)
	}
}

// Every route of the API refuses a request without a token or with a token of the wrong scope.
func TestEveryRouteIsGuarded(t *testing.T) {
	r := serveRemote(t)
	spec, err := os.ReadFile("../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	parameter := regexp.MustCompile(`\{[a-z]+\}`)
	var path string
	asked := 0
	invoke := r.token("acme", access.Invoke)
	for line := range strings.Lines(string(spec)) {
		switch trimmed := strings.TrimSuffix(strings.TrimSpace(line), ":"); {
		case strings.HasPrefix(line, "  /v1/"):
			path = parameter.ReplaceAllString(strings.Replace(trimmed, "{name}", "a.acme", 1), "a")
		case path != "" && slices.Contains([]string{"get", "post", "put", "delete"}, trimmed) && strings.HasPrefix(line, "    "+trimmed):
			asked++
			for _, token := range []string{"", invoke} {
				req, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(trimmed), r.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				want := []int{401}
				if token != "" {
					req.Header.Set("Authorization", "Bearer "+token)
					want = []int{403}
					if slices.Contains([]string{"get /v1/version", "get /v1/whoami", "get /v1/template/schema", "post /v1/template/check", "post /v1/functions/a.acme/invoke"}, trimmed+" "+path) {
						want = []int{200, 400, 422}
					}
					if agent, of := strings.CutPrefix(path, "/v1/agents/a/"); of && agent != "snapshots" { // this engine has no agents
						want = []int{501}
					}
				}
				resp, err := r.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if !slices.Contains(want, resp.StatusCode) {
					t.Errorf("%s %s with token %q: %d, want %v", trimmed, path, token, resp.StatusCode, want)
				}
				if challenge := resp.Header.Get("WWW-Authenticate"); (resp.StatusCode == 401 || resp.StatusCode == 403) && !strings.HasPrefix(challenge, "Bearer ") {
					t.Errorf("%s %s: WWW-Authenticate %q", trimmed, path, challenge)
				}
			}
		case strings.HasPrefix(line, "components:"):
			path = ""
		}
	}
	if asked < 60 {
		t.Errorf("%d routes were asked: the description was not read", asked)
	}
}

// Objects of another tenant do not exist for a tenant's token.
func TestTenantSeesItsOwn(t *testing.T) {
	r := serveRemote(t)
	c, ctx := r.client("acme", access.Admin), t.Context()
	functions, err := c.Functions().List(ctx)
	if err != nil || len(functions) != 1 || functions[0].Name != "a.acme" {
		t.Errorf("functions = %+v, %v, want a.acme", functions, err)
	}
	images, err := c.Images().List(ctx)
	if err != nil || len(images) != 1 || images[0].Names[0] != "a:latest" {
		t.Errorf("images = %+v, %v, want a:latest", images, err)
	}
	boxes, err := c.Sandboxes().List(ctx, client.SandboxOptions{All: true})
	if err != nil || len(boxes) != 1 || boxes[0].Function != "a.acme" {
		t.Errorf("sandboxes = %+v, %v, want a.acme's", boxes, err)
	}
	others, err := r.client("other", access.Read).Sandboxes().List(ctx, client.SandboxOptions{All: true})
	if err != nil || len(others) != 1 {
		t.Fatalf("the other's sandboxes = %+v, %v", others, err)
	}
	tenants, err := c.Tenants().List(ctx)
	if err != nil || len(tenants) != 1 || tenants[0].Name != "acme" {
		t.Errorf("tenants = %+v, %v, want acme", tenants, err)
	}
	_, err = c.Functions().Get(ctx, "b.other")
	wantStatus(t, "another's function", err, 404)
	wantStatus(t, "its logs", c.Functions().Logs(ctx, "b.other", client.LogOptions{}, nil), 404)
	wantStatus(t, "its removal", c.Functions().Remove(ctx, "b.other"), 404)
	_, err = c.Images().Get(ctx, "b")
	wantStatus(t, "its image", err, 404)
	_, err = c.Images().Remove(ctx, "b", client.RemoveOptions{})
	wantStatus(t, "its image's removal", err, 404)
	wantStatus(t, "its sandbox's end", c.Sandboxes().Kill(ctx, others[0].ID), 404)
	_, err = c.Secrets().List(ctx, "other")
	wantStatus(t, "its secrets", err, 404)
	wantStatus(t, "a secret in its place", c.Secrets().Put(ctx, "other", "key", []byte("x"), client.PutOptions{}), 404)
	_, err = c.Tokens().Create(ctx, api.TokenRequest{Name: "x", Tenant: "other", Scopes: []string{"read"}})
	wantStatus(t, "a token of it", err, 403)
	_, err = c.Tokens().Create(ctx, api.TokenRequest{Name: "x", Tenant: access.AllTenants, Scopes: []string{"read"}})
	wantStatus(t, "a token of all", err, 403)
	if tokens, err := c.Tokens().List(ctx); err != nil || slices.ContainsFunc(tokens, func(t api.Token) bool { return t.Tenant != "acme" }) {
		t.Errorf("tokens = %+v, %v, want acme's alone", tokens, err)
	}
	_, err = c.Tenants().SetQuotas(ctx, "acme", api.Quotas{})
	wantStatus(t, "its own quotas", err, 403)
	_, err = c.Status(ctx)
	wantStatus(t, "the engine's status", err, 403)

	// A tenant cannot deploy as another tenant, under another tenant's name or over another
	// tenant's image.
	wantStatus(t, "a template of another tenant", deployOf(t, c, "new", "other"), 403)
	wantStatus(t, "another's name", deployOf(t, c, "b", "acme"), 409)
	_, err = c.Functions().Deploy(ctx, api.DeployRequest{Image: "b", Name: "mine"})
	wantStatus(t, "another's image", err, 404)
	_, err = c.Functions().Deploy(ctx, api.DeployRequest{Image: "a", Name: "b.other", Replace: true})
	wantStatus(t, "another's name, by force", err, 403)
	wantStatus(t, "its own template", deployOf(t, c, "a", "acme"), 0)
}

// The audit log has each action with its user, and each refusal; it has no secret values.
func TestAuditLog(t *testing.T) {
	r := serveRemote(t)
	admin, reader := r.client("acme", access.Admin), r.client("acme", access.Read)
	ctx := t.Context()
	const value = "sk_live_never-in-a-log"
	if err := admin.Secrets().Put(ctx, "acme", "key", []byte(value), client.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, "with too little", reader.Functions().Remove(ctx, "a.acme"), 403)
	wantStatus(t, "of what is not there", admin.Secrets().Remove(ctx, "acme", "nothing"), 404)
	_, err := r.with("fre_0000000000000000_" + strings.Repeat("A", 43)).Functions().List(ctx)
	wantStatus(t, "made up", err, 401)
	if err := admin.Functions().Remove(ctx, "a.acme"); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(r.audit)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), value) {
		t.Errorf("the audit log holds a secret:\n%s", raw)
	}
	var got []string
	for line := range strings.Lines(string(raw)) {
		var e access.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Client.String() != "127.0.0.1" {
			t.Errorf("from %v: %s", e.Client, line)
		}
		if e.Result != access.Refused && e.Who == "" {
			t.Errorf("nobody did it: %s", line)
		}
		got = append(got, strings.Join([]string{e.Action, e.On, string(e.Result)}, " "))
	}
	for _, want := range []string{
		"POST /v1/functions a done", "POST /v1/functions b done", "POST /v1/tenants/{tenant}/secrets/{secret} key done",
		"DELETE /v1/functions/{name} a.acme refused", "DELETE /v1/tenants/{tenant}/secrets/{secret} nothing failed", "authenticate  refused", "DELETE /v1/functions/{name} a.acme done",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in the audit log:\n%s", want, strings.Join(got, "\n"))
		}
	}
}

// An admin manages tenants and tokens over the API.
func TestTenantsAndTokens(t *testing.T) {
	r := serveRemote(t)
	c, ctx := r.client(access.AllTenants, access.Admin), t.Context()
	if _, err := c.Tenants().Create(ctx, api.TenantRequest{Name: "new", Quotas: api.Quotas{Instances: 2}}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Tenants().Create(ctx, api.TenantRequest{Name: "new"})
	wantStatus(t, "a tenant twice", err, 409)
	got, err := c.Tenants().Get(ctx, "new")
	if err != nil || got.Quotas.Instances != 2 {
		t.Errorf("tenant = %+v, %v", got, err)
	}
	wantStatus(t, "a tenant with functions", c.Tenants().Remove(ctx, "acme"), 409)
	wantStatus(t, "one without", c.Tenants().Remove(ctx, "new"), 0)
	wantStatus(t, "one that is not there", c.Tenants().Remove(ctx, "new"), 404)
	made, err := c.Tokens().Create(ctx, api.TokenRequest{Name: "ci", Tenant: "acme", Scopes: []string{"read"}, LifeSeconds: 3600})
	if err != nil {
		t.Fatal(err)
	}
	next, err := c.Tokens().Rotate(ctx, made.Token.ID, api.TokenRotation{GraceSeconds: 0})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.with(made.Text).Whoami(ctx)
	wantStatus(t, "the old token, without grace", err, 401)
	if id, err := r.with(next.Text).Whoami(ctx); err != nil || id.Tenant != "acme" {
		t.Errorf("the new token: %+v, %v", id, err)
	}
	wantStatus(t, "no scope", func() error {
		_, err := c.Tokens().Create(context.WithoutCancel(ctx), api.TokenRequest{Name: "x", Tenant: "acme", Scopes: []string{"all"}})
		return err
	}(), 400)
}

// oneFunction is an engine without room for its function, so events wait.
type oneFunction struct{ name, tenant string }

func (o oneFunction) Function(name string) (*engine.Function, error) {
	if name != o.name {
		return nil, &engine.UnknownError{Function: name}
	}
	return &engine.Function{Name: name, Config: image.Config{Tenant: o.tenant}}, nil
}

func (oneFunction) Room(string) int { return 0 }

func (oneFunction) Invoke(context.Context, string, *engine.Request) (*engine.Response, error) {
	return nil, engine.ErrOverloaded
}

// A tenant gets only events with its own name.
func TestTenantsChanges(t *testing.T) {
	r := serveRemote(t)
	c := r.client("acme", access.Read)
	since := strconv.FormatUint(r.engine.Changes().Generation(), 10)
	var want []string
	for _, kind := range []store.ChangeKind{store.ChangeImage, store.ChangeFunction, store.ChangeSandbox, store.ChangeCache} {
		for _, action := range []store.ChangeAction{
			store.ActionStart, store.ActionExit, store.ActionKill, store.ActionStop, store.ActionRestart, store.ActionAttach, store.ActionDetach, store.ActionResize,
			store.ActionPull, store.ActionPush, store.ActionLoad, store.ActionImport, store.ActionSave, store.ActionPrune,
		} {
			for _, tenant := range []string{"acme", "other", ""} {
				r.engine.Changes().Add(store.Change{Kind: kind, Action: action, ID: "of " + tenant, Attributes: map[string]string{"tenant": tenant}})
			}
			want = append(want, string(kind)+" "+string(action)+" of acme")
		}
	}
	var got []string
	err := c.Events(t.Context(), client.EventOptions{Since: since}, func(ch api.Change) error {
		got = append(got, ch.Kind+" "+ch.Action+" "+ch.ID)
		return nil
	})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// A removed tenant leaves no events.
func TestTenantsEvents(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	records, err := access.Open(access.Config{Dir: t.TempDir(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	queue, err := events.Open(events.Config{Engine: oneFunction{"f.acme", "acme"}, Dir: t.TempDir(), Log: log, MinFreeBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(queue.Close(context.Background()), records.Close()); err != nil {
			t.Error(err)
		}
	})
	c := connect(t, func(cfg *server.Config) { cfg.Access, cfg.Events = records, queue })
	if _, err := c.Tenants().Create(t.Context(), api.TenantRequest{Name: "acme"}); err != nil {
		t.Fatal(err)
	}
	r, err := queue.Publish(t.Context(), "f.acme", &engine.Request{Method: http.MethodPost, Path: "/"}, events.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := queue.Find(t.Context(), r.ID); err != nil || d.Tenant != "acme" {
		t.Fatalf("before: %+v, %v", d, err)
	}
	if err := c.Tenants().Remove(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	if d, err := queue.Find(t.Context(), r.ID); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("after: %+v, %v", d, err)
	}
}

// For every route with an object's name, the answer for another tenant's object is identical to the
// answer for a missing object, by whole name, part of an id or field.
func TestForeignIsMissing(t *testing.T) {
	r := serveRemote(t)
	others, err := r.client("other", access.Read).Sandboxes().List(t.Context(), client.SandboxOptions{All: true})
	if err != nil || len(others) != 1 {
		t.Fatalf("the other's sandboxes = %+v, %v", others, err)
	}
	images, err := r.client("other", access.Read).Images().List(t.Context())
	if err != nil || len(images) != 1 {
		t.Fatalf("the other's images = %+v, %v", images, err)
	}
	theirs, _, err := r.access.CreateToken(access.TokenOptions{Name: "theirs", Tenant: "other", Scopes: []access.Scope{access.Read}})
	if err != nil {
		t.Fatal(err)
	}
	digest := images[0].Digest
	turned := func(id string) string { // an id of the same shape without an object
		last := "0"
		if strings.HasSuffix(id, last) {
			last = "1"
		}
		return id[:len(id)-1] + last
	}
	pairs := map[string][][2]string{
		"functions": {{"b.other", "z.other"}, {"b.other@1", "z.other@1"}},
		"images":    {{"b:latest", "z:latest"}, {"b", "z"}, {digest, turned(digest)}, {digest[:20], turned(digest[:20])}},
		"snapshots": {{"b:latest", "z:latest"}},
		"sandboxes": {{others[0].ID, turned(others[0].ID)}, {others[0].ID[:6], turned(others[0].ID[:6])}},
		"tenants":   {{"other", "otter"}},
		"tokens":    {{theirs.ID, turned(theirs.ID)}},
		"agents":    {{"agent-0123456789abcdef", "agent-fedcba9876543210"}},
		"events":    {{"0123456789abcdef", "fedcba9876543210"}},
	}
	token := r.token("acme", access.Admin)
	ask := func(method, path, body, name string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := r.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		resp.Header.Del("Date")
		var answer strings.Builder
		if err := resp.Write(&answer); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(answer.String(), `\"`+name, `\"NAME`)
	}
	spec, err := os.ReadFile("../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`^(/v1/(?:events/queue|[a-z]+)/)\{[a-z]+\}`)
	rest := regexp.MustCompile(`\{[a-z]+\}`)
	var path string
	asked := 0
	for line := range strings.Lines(string(spec)) {
		switch trimmed := strings.TrimSuffix(strings.TrimSpace(line), ":"); {
		case strings.HasPrefix(line, "components:"):
			path = ""
		case strings.HasPrefix(line, "  /v1/"):
			path = trimmed
		case path != "" && slices.Contains([]string{"get", "post", "put", "delete"}, trimmed) && strings.HasPrefix(line, "    "+trimmed):
			at := named.FindStringSubmatch(path)
			if at == nil {
				continue
			}
			for _, pair := range pairs[strings.Split(path, "/")[2]] {
				asked++
				method, after := strings.ToUpper(trimmed), rest.ReplaceAllString(path[len(at[0]):], "x")
				foreign := ask(method, at[1]+pair[0]+after, "{}", pair[0])
				missing := ask(method, at[1]+pair[1]+after, "{}", pair[1])
				if diff := cmp.Diff(missing, foreign); diff != "" {
					t.Errorf("%s %s: another's %s is answered otherwise than %s, which nobody has (-missing +foreign):\n%s", method, path, pair[0], pair[1], diff)
				}
			}
		}
	}
	if asked < 50 {
		t.Errorf("%d questions: the description was not read", asked)
	}
	for _, pair := range pairs["images"] {
		foreign := ask("POST", "/v1/functions", `{"image": "`+pair[0]+`"}`, pair[0])
		missing := ask("POST", "/v1/functions", `{"image": "`+pair[1]+`"}`, pair[1])
		if diff := cmp.Diff(missing, foreign); diff != "" {
			t.Errorf("deploy another's image %s (-missing +foreign):\n%s", pair[0], diff)
		}
	}
}
