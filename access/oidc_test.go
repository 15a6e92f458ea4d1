package access

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testIssuer is a small issuer: discovery, keys, and tokens signed by RS256.
type testIssuer struct {
	*httptest.Server
	key  *rsa.PrivateKey
	asks atomic.Int64 // requests for keys
	down atomic.Bool
}

func newTestIssuer(t *testing.T) *testIssuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &testIssuer{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		if i.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/auth", "token_endpoint": i.URL + "/token",
			"id_token_signing_alg_values_supported": []string{"RS256"},
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		i.asks.Add(1)
		w.Header().Set("Content-Type", "application/json")
		b64 := base64.RawURLEncoding.EncodeToString
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{
			"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "n": b64(key.N.Bytes()), "e": b64(big.NewInt(int64(key.E)).Bytes()),
		}}})
	})
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Close)
	return i
}

// token signs the claims of a good token with changes; nil removes a claim.
func (i *testIssuer) token(t *testing.T, now time.Time, header, claims map[string]any) string {
	t.Helper()
	head := map[string]any{"alg": "RS256", "kid": "one", "typ": "JWT"}
	body := map[string]any{"iss": i.URL, "aud": "fre", "sub": "ada", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(), "fre_tenant": "acme", "scope": "openid fre:deploy invoke"}
	maps.Copy(head, header)
	maps.Copy(body, claims)
	part := func(v map[string]any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	signed := part(head) + "." + part(body)
	sum := sha256.Sum256([]byte(signed))
	sig, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func TestOIDC(t *testing.T) {
	i := newTestIssuer(t)
	other := newTestIssuer(t)
	clock := newClock()
	a := open(t, Config{Now: clock.now, OIDC: []OIDC{{Issuer: i.URL, Audience: "fre", TenantClaim: "fre_tenant", ScopesClaim: "scope"}}})
	now := clock.now()
	good := i.token(t, now, nil, nil)
	id, err := authenticate(t, a, good)
	want := Identity{Who: "oidc ada at " + i.URL, Tenant: "acme", Scopes: []Scope{Deploy, Invoke}}
	if err != nil || !cmp.Equal(id, want) {
		t.Fatalf("Authenticate = %+v, %v, want %+v", id, err, want)
	}
	if id, err := authenticate(t, a, i.token(t, now, nil, map[string]any{"scope": []string{"read", "unknown"}})); err != nil || !cmp.Equal(id.Scopes, []Scope{Read}) {
		t.Errorf("scopes as a list = %v, %v, want read", id.Scopes, err)
	}
	parts := strings.Split(good, ".")
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"` + i.URL + `","aud":"fre","sub":"eve","exp":9999999999,"fre_tenant":"acme","scope":"admin"}`))
	for name, c := range map[string]struct {
		token string
		want  error
	}{
		"another audience":       {i.token(t, now, nil, map[string]any{"aud": "others"}), ErrToken},
		"no audience":            {i.token(t, now, nil, map[string]any{"aud": nil}), ErrToken},
		"an issuer not known":    {other.token(t, now, nil, nil), ErrToken},
		"signed by another":      {other.token(t, now, nil, map[string]any{"iss": i.URL}), ErrToken},
		"claims exchanged":       {parts[0] + "." + forged + "." + parts[2], ErrToken},
		"no signature":           {parts[0] + "." + parts[1] + ".", ErrToken},
		"alg none":               {i.token(t, now, map[string]any{"alg": "none"}, nil), ErrToken},
		"an hmac with its key":   {i.token(t, now, map[string]any{"alg": "HS256"}, nil), ErrToken},
		"all tenants by a claim": {i.token(t, now, nil, map[string]any{"fre_tenant": AllTenants}), ErrToken},
		"no tenant":              {i.token(t, now, nil, map[string]any{"fre_tenant": nil}), ErrToken},
		"a tenant by number":     {i.token(t, now, nil, map[string]any{"fre_tenant": 7}), ErrToken},
		"expired":                {i.token(t, now, nil, map[string]any{"exp": now.Add(-2 * clockSkew).Unix()}), ErrExpired},
		"not valid yet":          {i.token(t, now, nil, map[string]any{"nbf": now.Add(time.Hour).Unix()}), ErrToken},
	} {
		a.failures = Addresses{} // the failures before do not slow down the next case
		if id, err := authenticate(t, a, c.token); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", name, id, err, c.want)
		}
	}
	// Clocks that differ by less than the skew are accepted.
	for name, claims := range map[string]map[string]any{
		"its clock is behind": {"exp": now.Add(-clockSkew / 2).Unix()},
		"its clock is ahead":  {"nbf": now.Add(time.Minute).Unix(), "iat": now.Add(time.Minute).Unix()},
	} {
		if _, err := authenticate(t, a, i.token(t, now, nil, claims)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Made-up tokens do not make the engine ask the issuer again and again.
func TestOIDCGuesses(t *testing.T) {
	i := newTestIssuer(t)
	clock := newClock()
	a := open(t, Config{Now: clock.now, OIDC: []OIDC{{Issuer: i.URL, Audience: "fre", Tenant: "acme", Scopes: []Scope{Read}}}})
	for range 10 * failureBurst {
		if _, err := authenticate(t, a, i.token(t, clock.now(), map[string]any{"kid": "made-up"}, nil)); err == nil {
			t.Fatal("a token with an unknown key was let in")
		}
	}
	if n := i.asks.Load(); n > failureBurst {
		t.Errorf("the issuer was asked for its keys %d times by %d guesses, want %d at most", n, 10*failureBurst, failureBurst)
	}
}

// While the issuer does not answer, its tokens are refused for the time being only, and FRE's own
// tokens work.
func TestOIDCDown(t *testing.T) {
	i := newTestIssuer(t)
	i.down.Store(true)
	clock := newClock()
	dir := filepath.Join(t.TempDir(), "access")
	a := open(t, Config{Dir: dir, Now: clock.now, OIDC: []OIDC{{Issuer: i.URL, Audience: "fre", Tenant: AllTenants, Scopes: []Scope{Read}}}})
	token := i.token(t, clock.now(), nil, nil)
	for range 2 * failureBurst {
		if _, err := authenticate(t, a, token); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("while it is down: %v, want ErrUnavailable", err)
		}
	}
	_, own, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: "acme", Scopes: []Scope{Read}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authenticate(t, a, own); err != nil {
		t.Errorf("FRE's own token: %v", err)
	}
	i.down.Store(false)
	a.oidc[0].failed = time.Time{} // the pause is over
	if id, err := authenticate(t, a, token); err != nil || !id.All() {
		t.Errorf("once it answers: %+v, %v", id, err)
	}
}

func TestOIDCConfig(t *testing.T) {
	good := OIDC{Issuer: "https://issuer.example", Audience: "fre", Tenant: "acme", Scopes: []Scope{Read}}
	if _, err := newIssuer(good, Config{}); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*OIDC){
		"no issuer": func(o *OIDC) { o.Issuer = "" }, "http": func(o *OIDC) { o.Issuer = "http://issuer.example" },
		"no audience": func(o *OIDC) { o.Audience = "" }, "no tenant": func(o *OIDC) { o.Tenant = "" }, "both tenants": func(o *OIDC) { o.TenantClaim = "t" },
		"no scopes": func(o *OIDC) { o.Scopes = nil }, "bad tenant": func(o *OIDC) { o.Tenant = "A" },
	} {
		o := good
		edit(&o)
		if _, err := newIssuer(o, Config{}); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
