package access

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// OIDC is an issuer of OpenID Connect whose ID tokens, or JWT access tokens, hold
// (OpenID Connect Core 1.0 section 3.1.3.7). Issuer and Audience are required, and a
// tenant and scopes, each fixed or by a claim.
type OIDC struct {
	Issuer   string // https, or http on loopback
	Audience string // "aud" has to hold it

	Tenant      string // that its tokens are for; AllTenants for all
	TenantClaim string // else the claim that names it, which AllTenants is not accepted from
	Scopes      []Scope
	ScopesClaim string // else a claim: a list, or words; what is none of FRE's scopes says nothing
}

// clockSkew is how far an issuer's clock may be behind: a token's end counts that much
// later. For one that runs ahead package oidc allows five minutes.
const clockSkew = time.Minute

// issuer asks an issuer for its keys at the first token, and again where that failed.
type issuer struct {
	OIDC
	http *http.Client
	now  func() time.Time

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil: not yet
	failed   time.Time             // when it was last asked in vain
}

func newIssuer(o OIDC, cfg Config) (*issuer, error) {
	u, err := url.Parse(o.Issuer)
	loopback := err == nil && (u.Hostname() == "127.0.0.1" || u.Hostname() == "::1" || u.Hostname() == "localhost")
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback):
		return nil, fmt.Errorf("oidc: issuer %q is no https URL", o.Issuer)
	case o.Audience == "":
		return nil, fmt.Errorf("oidc: issuer %s: audience is missing: without it tokens for anybody would hold", o.Issuer)
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

// retryIssuer is for how long one that did not answer is not asked again.
const retryIssuer = 10 * time.Second

func (i *issuer) verify(ctx context.Context, token string) (*oidc.IDToken, error) {
	i.mu.Lock()
	if i.verifier == nil && (i.failed.IsZero() || time.Since(i.failed) > retryIssuer) {
		// Its keys are fetched with this context later, too.
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
	case err != nil && strings.Contains(err.Error(), "fetching keys"): // package oidc has no type for it
		return nil, fmt.Errorf("%w: the keys of %s cannot be fetched", ErrUnavailable, i.Issuer)
	case err != nil:
		return nil, ErrToken // what is wrong with it is nobody's business who made it up
	}
	return t, nil
}

// identifyOIDC checks a token of the issuer that it names.
func (a *Access) identifyOIDC(ctx context.Context, token string) (Identity, error) {
	named := issuerOf(token)
	for _, i := range a.oidc {
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

// issuerOf is what an unverified token says of itself, only to find whom to ask.
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

// identity makes of a token's claims what it is good for.
func (i *issuer) identity(t *oidc.IDToken) (Identity, error) {
	id := Identity{Who: fmt.Sprintf("oidc %s at %s", printable(t.Subject), i.Issuer), Tenant: i.Tenant, Scopes: i.Scopes}
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return id, ErrToken
	}
	if i.TenantClaim != "" {
		id.Tenant, _ = claims[i.TenantClaim].(string)
		if checkTenant(id.Tenant) != nil {
			return id, fmt.Errorf("%w: its claim %s names no tenant", ErrToken, i.TenantClaim)
		}
	}
	if i.ScopesClaim != "" {
		var words []string
		switch c := claims[i.ScopesClaim].(type) {
		case string:
			words = strings.Fields(c)
		case []any:
			for _, w := range c {
				if s, ok := w.(string); ok {
					words = append(words, s)
				}
			}
		}
		for _, w := range words {
			if s, err := ParseScopes(strings.TrimPrefix(w, "fre:")); err == nil {
				id.Scopes = append(id.Scopes, s...)
			}
		}
	}
	return id, nil
}

// printable is a subject for the audit log, whose issuer may put anything there.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s[:min(len(s), 256)])
}
