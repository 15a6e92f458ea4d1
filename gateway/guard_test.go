package gateway

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/engine"
)

// guardRig is a gateway with the functions a (of acme) and b (of other). They answer with their
// Authorization field.
type guardRig struct {
	*rig
	access *access.Access
	fronts map[string]engine.Front
}

func guarded(t *testing.T, more map[string]engine.Front, change func(*Config)) *guardRig {
	t.Helper()
	a, err := access.Open(access.Config{Dir: filepath.Join(t.TempDir(), "access"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	g := &guardRig{access: a, fronts: map[string]engine.Front{"a": {Tenant: "acme"}, "b": {Tenant: "other"}}}
	maps.Copy(g.fronts, more)
	g.rig = serveFake(t, func(_ context.Context, name string, r *engine.Request) (*engine.Response, error) {
		if _, known := g.fronts[name]; !known {
			return nil, &engine.UnknownError{Function: name}
		}
		said := "none"
		for _, h := range r.Headers {
			if h[0] == "Authorization" {
				said = h[1]
			}
		}
		return text(200, said, [2]string{"Access-Control-Allow-Origin", "https://function.example"}), nil
	}, func(c *Config) {
		c.Guard = &Guard{Access: a, Front: func(name string) (engine.Front, bool) {
			f, known := g.fronts[name]
			return f, known
		}}
		if change != nil {
			change(c)
		}
	})
	return g
}

func (g *guardRig) token(tenant string, scopes ...access.Scope) string {
	g.t.Helper()
	_, text, err := g.access.CreateToken(access.TokenOptions{Name: "test", Tenant: tenant, Scopes: scopes})
	if err != nil {
		g.t.Fatal(err)
	}
	return text
}

// answered is the answer to a request.
type answered struct {
	StatusCode int
	Header     http.Header
}

// get requests a function with this header.
func (g *guardRig) get(method, path string, header map[string]string) (answered, string) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), method, g.url+path, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header}, string(body)
}

// TestInvokeByToken: a function is called only with a valid token of its tenant and with the scope
// for calls.
func TestInvokeByToken(t *testing.T) {
	g := guarded(t, map[string]engine.Front{"open": {Tenant: "acme", Access: engine.AccessOpen}}, func(c *Config) { c.Guard.Token = true })
	acme, reader, all := g.token("acme", access.Invoke), g.token("acme", access.Read), g.token(access.AllTenants, access.Invoke)
	for _, c := range []struct {
		name, path, token string
		status            int
		challenge         string
	}{
		{"its own", "/function/a", acme, 200, ""},
		{"all tenants", "/function/b", all, 200, ""},
		{"none", "/function/a", "", 401, `Bearer realm="fre"`},
		{"none, of a function that is not there", "/function/nowhere", "", 401, `Bearer realm="fre"`},
		{"made up", "/function/a", "fre_0000000000000000_" + strings.Repeat("A", 43), 401, `Bearer realm="fre", error="invalid_token"`},
		{"another scope", "/function/a", reader, 403, `Bearer realm="fre", error="insufficient_scope", scope="invoke"`},
		{"another tenant's", "/function/b", acme, 404, ""},
		{"not there", "/function/nowhere", acme, 404, ""},
		{"a template's open, which the engine does not allow", "/function/open", "", 401, `Bearer realm="fre"`},
	} {
		header := map[string]string{}
		if c.token != "" {
			header["Authorization"] = "Bearer " + c.token
		}
		resp, body := g.get("GET", c.path, header)
		if resp.StatusCode != c.status || resp.Header.Get("WWW-Authenticate") != c.challenge {
			t.Errorf("%s: %d, %q, want %d, %q\n%s", c.name, resp.StatusCode, resp.Header.Get("WWW-Authenticate"), c.status, c.challenge, body)
		}
		if c.status == 200 && body != "none" {
			t.Errorf("%s: the function was told %q", c.name, body)
		}
	}
	var refused []string
	err := g.access.Audit(t.Context(), access.AuditOptions{Tail: access.MaxAuditTail}, func(e access.Entry) error {
		refused = append(refused, strings.Join([]string{e.Action, e.Tenant, e.On, string(e.Result)}, " "))
		return nil
	})
	if diff := cmp.Diff([]string{"authenticate   refused", "invoke acme a refused"}, refused); diff != "" || err != nil {
		t.Errorf("the audit log, %v, -want +got:\n%s", err, diff)
	}
}

// TestTemplateAccess: a template may require a token even if the engine does not, and may be open
// if the engine allows open functions. Then the function gets the client's Authorization field.
func TestTemplateAccess(t *testing.T) {
	g := guarded(t, map[string]engine.Front{"closed": {Tenant: "acme", Access: engine.AccessToken}}, nil)
	if resp, _ := g.get("GET", "/function/closed", nil); resp.StatusCode != 401 {
		t.Errorf("closed without a token: %d, want 401", resp.StatusCode)
	}
	if resp, body := g.get("GET", "/function/a", map[string]string{"Authorization": "Basic Zm9vOmJhcg=="}); resp.StatusCode != 200 || body != "Basic Zm9vOmJhcg==" {
		t.Errorf("open: %d %q, want what the client sent", resp.StatusCode, body)
	}
	open := guarded(t, map[string]engine.Front{"open": {Tenant: "acme", Access: engine.AccessOpen}}, func(c *Config) { c.Guard.Token, c.Guard.AllowOpen = true, true })
	if resp, _ := open.get("GET", "/function/open", nil); resp.StatusCode != 200 {
		t.Errorf("a template's open, which the engine allows: %d, want 200", resp.StatusCode)
	}
}

// TestEventsPerSecond: events beyond a tenant's rate are answered 429 with Retry-After.
func TestEventsPerSecond(t *testing.T) {
	g := guarded(t, nil, nil)
	if _, err := g.access.CreateTenant("acme", access.Quotas{EventsPerSecond: 1}); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for range 10 {
		resp, body := g.get("GET", "/function/a", nil)
		if resp.StatusCode == http.StatusTooManyRequests {
			refused++
			if after := resp.Header.Get("Retry-After"); after != "1" || !strings.Contains(body, `"quota"`) {
				t.Errorf("Retry-After %q, %s", after, body)
			}
		}
		if resp, _ := g.get("GET", "/function/b", nil); resp.StatusCode != 200 {
			t.Errorf("another tenant's event: %d", resp.StatusCode)
		}
	}
	if refused < 5 {
		t.Errorf("%d of 10 events were refused, want most: one each second may come", refused)
	}
}

// TestClientRate: events beyond a client address's rate are answered 429 with Retry-After.
func TestClientRate(t *testing.T) {
	g := guarded(t, nil, func(c *Config) { c.Guard.Clients = access.NewAddresses(access.Rate{Each: time.Hour, Burst: 3}) })
	for i := range 5 {
		want := 200
		if i >= 3 {
			want = http.StatusTooManyRequests
		}
		resp, _ := g.get("GET", "/function/a", nil)
		if resp.StatusCode != want || want != 200 && resp.Header.Get("Retry-After") == "" {
			t.Errorf("request %d: %d with Retry-After %q, want %d", i, resp.StatusCode, resp.Header.Get("Retry-After"), want)
		}
	}
	if resp, _ := g.get("GET", "/healthz", nil); resp.StatusCode != 200 {
		t.Errorf("/healthz: %d", resp.StatusCode)
	}
}

func TestCORS(t *testing.T) {
	ofC := &engine.CORS{Origins: []string{"https://app.example"}, Methods: []string{"PUT"}, Headers: []string{"Authorization"}, Credentials: true, MaxAge: time.Minute}
	g := guarded(t, map[string]engine.Front{"c": {Tenant: "acme", CORS: ofC}}, func(c *Config) {
		c.Guard.Token, c.Guard.CORS = true, &engine.CORS{Origins: []string{"*"}}
	})
	authorization := "Bearer " + g.token("acme", access.Invoke)
	preflight := map[string]string{"Origin": "https://app.example", "Access-Control-Request-Method": "PUT"}
	// Browsers send no token with preflight requests.
	resp, _ := g.get("OPTIONS", "/function/c", preflight)
	for field, want := range map[string]string{
		"Access-Control-Allow-Origin": "https://app.example", "Access-Control-Allow-Methods": "PUT", "Access-Control-Allow-Headers": "Authorization",
		"Access-Control-Allow-Credentials": "true", "Access-Control-Max-Age": "60", "Vary": "Origin",
	} {
		if got := resp.Header.Get(field); resp.StatusCode != 204 || got != want {
			t.Errorf("preflight: %d, %s: %q, want 204, %q", resp.StatusCode, field, got, want)
		}
	}
	preflight["Origin"] = "https://evil.example"
	if resp, _ := g.get("OPTIONS", "/function/c", preflight); resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another origin's preflight: %d, %v", resp.StatusCode, resp.Header)
	}
	for _, c := range []struct{ path, origin, token, want string }{
		{"/function/c", "https://app.example", authorization, "https://app.example"},
		{"/function/c", "https://app.example", "", "https://app.example"}, // with the refusal, so that the page can read it
		{"/function/c", "https://evil.example", authorization, ""},
		{"/function/c", "", authorization, ""},
		{"/function/a", "https://any.example", authorization, "*"}, // from the configuration
	} {
		header := map[string]string{}
		if c.token != "" {
			header["Authorization"] = c.token
		}
		if c.origin != "" {
			header["Origin"] = c.origin
		}
		resp, _ := g.get("GET", c.path, header)
		if got := resp.Header.Values("Access-Control-Allow-Origin"); strings.Join(got, " ") != c.want {
			t.Errorf("%s from %q: Access-Control-Allow-Origin %q, want %q", c.path, c.origin, got, c.want)
		}
	}
}

// TestMetricsOfTenant: a tenant's token shows the metrics of this tenant only.
func TestMetricsOfTenant(t *testing.T) {
	reg := prometheus.NewRegistry()
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fre_events_total"}, []string{"function"})
	reg.MustRegister(events, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fre_sandboxes"}, func() float64 { return 3 }))
	events.WithLabelValues("a").Inc()
	events.WithLabelValues("b").Inc()
	use := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "fre_tenant_instances"}, []string{"tenant"})
	reg.MustRegister(use)
	use.WithLabelValues("acme").Set(1)
	use.WithLabelValues("other").Set(1)
	g := guarded(t, nil, func(c *Config) { c.Guard.Token, c.Metrics = true, reg })
	for _, c := range []struct {
		token  string
		status int
		has    []string
		hasNot []string
	}{
		{g.token(access.AllTenants, access.Read), 200, []string{`function="a"`, `function="b"`, "fre_sandboxes", `tenant="other"`}, nil},
		{g.token("acme", access.Read), 200, []string{`function="a"`, `tenant="acme"`}, []string{`function="b"`, "fre_sandboxes", `tenant="other"`}},
		{g.token("acme", access.Invoke), 403, nil, []string{"fre_"}},
		{"none", 401, nil, []string{"fre_events"}},
	} {
		resp, body := g.get("GET", "/metrics", map[string]string{"Authorization": "Bearer " + c.token})
		if resp.StatusCode != c.status {
			t.Errorf("status %d, want %d", resp.StatusCode, c.status)
		}
		for _, s := range c.has {
			if !strings.Contains(body, s) {
				t.Errorf("%s is not in\n%s", s, body)
			}
		}
		for _, s := range c.hasNot {
			if strings.Contains(body, s) {
				t.Errorf("%s is in\n%s", s, body)
			}
		}
	}
}

// TestEventsGuarded: an asynchronous event needs the same token as a synchronous event, and counts
// against the quota. A hook has the rule of its trigger, and its accepted events count.
func TestEventsGuarded(t *testing.T) {
	g := guarded(t, map[string]engine.Front{"f": {Tenant: "acme"}}, func(c *Config) {
		c.Events, c.Guard.Token = &takesEvents{got: make(chan engine.Request, 8)}, true
		c.Guard.CORS = &engine.CORS{Origins: []string{"*"}, Methods: []string{"POST"}}
	})
	if _, err := g.access.SetQuotas("acme", access.Quotas{EventsPerSecond: 1}); err != nil { // allows a burst of two
		t.Fatal(err)
	}
	own, others := "Bearer "+g.token("acme", access.Invoke), "Bearer "+g.token("other", access.Invoke)
	for _, c := range []struct {
		method, path, token string
		want                int
	}{
		{"POST", "/async-function/f", "", 401},
		{"POST", "/async-function/f", others, 404},
		{"POST", "/async-function/f", own, 202},
		{"POST", "/async-function/f", own, 202},
		{"POST", "/async-function/f", own, 429},
		{"OPTIONS", "/async-function/f", "", 204},
		{"POST", "/hooks/f/one", "", 202},
		{"POST", "/hooks/f/much", "", 429},
	} {
		header := map[string]string{}
		if c.token != "" {
			header["Authorization"] = c.token
		}
		if c.method == "OPTIONS" {
			header["Origin"], header["Access-Control-Request-Method"] = "https://app.example", "POST"
		}
		resp, body := g.get(c.method, c.path, header)
		if resp.StatusCode != c.want || c.want == 429 && resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s %s with %.12q: %d %s, want %d", c.method, c.path, c.token, resp.StatusCode, body, c.want)
		}
	}
}
