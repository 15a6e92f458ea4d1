package outward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http/httpproxy"
)

func TestPublic(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.215.14": true, "2606:2800:21f::1": true, "127.0.0.1": false, "::1": false, "10.1.2.3": false, "169.254.169.254": false, "100.64.0.1": false,
		"0.0.0.0": false, "fe80::1": false, "fd00::1": false, "::ffff:10.2.0.1": false, "64:ff9b::7f00:1": false, "224.0.0.1": false, "255.255.255.255": false,
		"2002:7f00:1::": false, "192.0.2.1": false,
	} {
		if got := Public(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: public %v, want %v", address, got, want)
		}
	}
}

// counted is a server on loopback that counts connections.
func counted(t *testing.T, handler http.Handler) (*httptest.Server, *int) {
	t.Helper()
	n := new(int)
	s := httptest.NewUnstartedServer(handler)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			*n++
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, n
}

func get(t *testing.T, r *Rule, to string) (string, error) {
	t.Helper()
	transport := r.transport(&httpproxy.Config{})
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// TestRefusal: a missing name and a name with a private address give the same refusal. A silent
// resolver is reported, because it may answer later.
func TestRefusal(t *testing.T) {
	var r Rule
	private := r.refusal("db.internal", &net.OpError{Op: "dial", Err: r.refuse("db.internal")})
	unknown := r.refusal("db.internal", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "db.internal", Server: "10.0.0.53:53", IsNotFound: true}})
	if private.Error() != unknown.Error() || strings.Contains(unknown.Error(), "10.0.0.53") {
		t.Errorf("private: %v\nunknown: %v", private, unknown)
	}
	silent := &net.DNSError{Err: "i/o timeout", Name: "db.internal", IsTimeout: true}
	if err := r.refusal("db.internal", silent); !errors.Is(err, silent) {
		t.Errorf("a resolver that does not answer: %v", err)
	}
	if err := r.refusal("db.internal", nil); err != nil {
		t.Error(err)
	}
}

// TestRefused: loopback by address, by name and by redirect is refused before a connection. An open
// port and a closed port give the same words.
func TestRefused(t *testing.T) {
	inside, seen := counted(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") }))
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	door, _ := counted(t, http.RedirectHandler(inside.URL, http.StatusFound))
	closed := httptest.NewServer(nil)
	closed.Close()

	told := map[string]string{}
	for name, to := range map[string]string{
		"open": inside.URL, "closed": closed.URL, "name": "http://localhost:" + port, "mapped": "http://[::ffff:127.0.0.1]:" + port, "any": "http://0.0.0.0:" + port,
	} {
		_, err := get(t, &Rule{}, to)
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v, want a *RefusedError", to, err)
		}
		told[name] = strings.ReplaceAll(err.Error(), to, "URL")
	}
	if told["open"] != told["closed"] {
		t.Errorf("an open port is told from a closed one:\n%s\n%s", told["open"], told["closed"])
	}
	if _, err := get(t, &Rule{Hosts: []string{door.Listener.Addr().String()}}, door.URL); err == nil {
		t.Error("a redirect leads inside")
	}
	if *seen != 0 {
		t.Errorf("%d connections were made", *seen)
	}
}

// TestNamed: a named network or host can be reached, and Only excludes the public internet.
func TestNamed(t *testing.T) {
	inside, _ := counted(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	for name, r := range map[string]*Rule{
		"range":  {Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		"server": {Hosts: []string{inside.Listener.Addr().String()}},
	} {
		if body, err := get(t, r, inside.URL); err != nil || body != "ok" {
			t.Errorf("by its %s: %q, %v", name, body, err)
		}
	}
	only := &Rule{Only: true}
	if only.Allows(netip.MustParseAddr("93.184.215.14")) {
		t.Error("a rule of its ranges only allows the public internet")
	}
}

// TestProxy: a program connects through the proxy, directly and by a tunnel, to allowed hosts only.
// A stranger cannot use the proxy.
func TestProxy(t *testing.T) {
	inside, seen := counted(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	secure := httptest.NewTLSServer(inside.Config.Handler)
	t.Cleanup(secure.Close)
	through := func(r *Rule, to string, login bool) (string, int, *Proxy) {
		t.Helper()
		p, err := r.OpenProxy(nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		at, err := url.Parse(p.URL())
		if err != nil {
			t.Fatal(err)
		}
		if !login {
			at.User = nil
		}
		transport := secure.Client().Transport.(*http.Transport).Clone()
		transport.Proxy = http.ProxyURL(at)
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return err.Error(), 0, p
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		return string(body), resp.StatusCode, p
	}
	open := &Rule{Hosts: []string{inside.Listener.Addr().String(), secure.Listener.Addr().String()}}
	for _, to := range []string{inside.URL, secure.URL} {
		if body, _, _ := through(open, to, true); body != "ok" {
			t.Errorf("%s: %q, want ok", to, body)
		}
		*seen = 0
		if body, _, p := through(&Rule{}, to, true); body == "ok" || p.Refused() == nil {
			t.Errorf("%s is not refused: %q, %v", to, body, p.Refused())
		}
		if body, _, _ := through(open, to, false); body == "ok" {
			t.Errorf("%s: a stranger may use the proxy", to)
		}
		if *seen != 0 {
			t.Errorf("%s: %d connections for who was refused", to, *seen)
		}
	}
}

// TestNextProxy: the operator's proxy carries requests to allowed addresses only, and cannot be
// reached as a server.
func TestNextProxy(t *testing.T) {
	var asked []string
	next, _ := counted(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		_, _ = io.WriteString(w, "by the proxy")
	}))
	proxies := &httpproxy.Config{HTTPProxy: next.URL}
	transport := (&Rule{}).transport(proxies)
	defer transport.CloseIdleConnections()
	ask := func(to string) (string, error) {
		req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	if body, err := ask("http://93.184.215.14/"); err != nil || body != "by the proxy" {
		t.Errorf("a public address: %q, %v", body, err)
	}
	for _, to := range []string{"http://10.0.0.1/", "http://169.254.169.254/latest/meta-data/", next.URL} {
		if body, err := ask(to); err == nil {
			t.Errorf("%s: %q by the proxy", to, body)
		}
	}
	if len(asked) != 1 {
		t.Errorf("the proxy was asked for %q", asked)
	}
}
