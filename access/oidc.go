package access

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// OIDC is an issuer of OpenID Connect whose ID tokens or JWT access tokens are accepted (OpenID
// Connect Core 1.0 section 3.1.3.7). Issuer, Audience, a tenant and scopes are required; tenant and
// scopes are either fixed or taken from a claim.
type OIDC struct {
	Issuer   string // https, or http on loopback
	Audience string // must be in "aud"

	Tenant      string // of all tokens; AllTenants for all tenants
	TenantClaim string // instead of Tenant: claim with the tenant's name; AllTenants is refused
	Scopes      []Scope
	ScopesClaim string // instead of Scopes: claim with a list or words; unknown words are ignored
}

// clockSkew is how far an issuer's clock may lag: a token expires later by clockSkew. For clocks
// that run ahead, package oidc allows five minutes.
const clockSkew = time.Minute

// issuer fetches an issuer's keys for the first token, and again after a failure.
type issuer struct {
	OIDC
	http *http.Client
	now  func() time.Time

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil: keys not fetched yet
	failed   time.Time             // time of the last failed request
}

// isSecure reports whether the address is https, or http on this host.
func isSecure(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return false
	}
	loopback := slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && loopback
}

func newIssuer(o OIDC, cfg Config) (*issuer, error) {
	switch {
	case !isSecure(o.Issuer):
		return nil, fmt.Errorf("oidc: issuer %q is not an https URL", o.Issuer)
	case o.Audience == "":
		return nil, fmt.Errorf("oidc: issuer %s: audience is missing: without an audience, tokens for other services would be valid", o.Issuer)
	case (o.Tenant == "") == (o.TenantClaim == ""):
		return nil, fmt.Errorf("oidc: issuer %s: give tenant or tenant_claim", o.Issuer)
	case (len(o.Scopes) == 0) == (o.ScopesClaim == ""):
		return nil, fmt.Errorf("oidc: issuer %s: give scopes or scopes_claim", o.Issuer)
	}
	if o.Tenant != "" && o.Tenant != AllTenants {
		if err := checkTenant(o.Tenant); err != nil {
			return nil, fmt.Errorf("oidc: issuer %s: %w", o.Issuer, err)
		}
	}
	return &issuer{OIDC: o, http: cfg.HTTP, now: cfg.Now}, nil
}

// retryIssuer is the pause after an issuer did not answer.
const retryIssuer = 10 * time.Second

func (i *issuer) verify(ctx context.Context, token string) (*oidc.IDToken, error) {
	i.mu.Lock()
	if i.verifier == nil && (i.failed.IsZero() || time.Since(i.failed) > retryIssuer) {
		// The provider keeps the context and uses it to fetch keys later.
		p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), i.http), i.Issuer)
		if err == nil {
			i.verifier = p.Verifier(&oidc.Config{ClientID: i.Audience, Now: func() time.Time { return i.now().Add(-clockSkew) }})
		} else {
			i.failed = time.Now()
		}
	}
	v := i.verifier
	i.mu.Unlock()
	if v == nil {
		return nil, fmt.Errorf("%w: the issuer %s does not answer", ErrUnavailable, i.Issuer)
	}
	t, err := v.Verify(ctx, token)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, ErrExpired
	case err != nil && strings.Contains(err.Error(), "fetching keys"): // package oidc has no error type
		return nil, fmt.Errorf("%w: the keys of %s cannot be fetched", ErrUnavailable, i.Issuer)
	case err != nil:
		return nil, ErrToken // a forger must not learn the reason
	}
	return t, nil
}

// issuers are the issuers whose tokens are accepted.
type issuers []*issuer

// identify checks a token with the issuer that the token names.
func (all issuers) identify(ctx context.Context, token string) (Identity, error) {
	named := issuerOf(token)
	for _, i := range all {
		if i.Issuer != named {
			continue
		}
		t, err := i.verify(ctx, token)
		if err != nil {
			return Identity{Who: "oidc " + named}, err
		}
		return i.identity(t)
	}
	return Identity{}, ErrToken
}

// issuerOf returns the issuer that an unverified token names, only to choose the verifier.
func issuerOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || len(token) > 16<<10 {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(raw, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// wordsOf returns the words of a claim: a string, or a list of strings.
func wordsOf(claim any) (words []string) {
	switch c := claim.(type) {
	case string:
		return strings.Fields(c)
	case []any:
		for _, w := range c {
			if s, ok := w.(string); ok {
				words = append(words, s)
			}
		}
	}
	return words
}

// identity returns the identity that a token's claims give.
func (i *issuer) identity(t *oidc.IDToken) (Identity, error) {
	id := Identity{Who: fmt.Sprintf("oidc %s at %s", printable(t.Subject), i.Issuer), Tenant: i.Tenant, Scopes: i.Scopes}
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return id, ErrToken
	}
	if i.TenantClaim != "" {
		id.Tenant, _ = claims[i.TenantClaim].(string)
		if checkTenant(id.Tenant) != nil {
			return id, fmt.Errorf("%w: the claim %s names no tenant", ErrToken, i.TenantClaim)
		}
	}
	if i.ScopesClaim != "" {
		for _, w := range wordsOf(claims[i.ScopesClaim]) {
			if s, err := ParseScopes(strings.TrimPrefix(w, "fre:")); err == nil {
				id.Scopes = append(id.Scopes, s...)
			}
		}
	}
	return id, nil
}

// printable makes a subject safe for the audit log, because an issuer may put any bytes into it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s[:min(len(s), 256)])
}
