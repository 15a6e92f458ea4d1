package server

import (
	"net/http"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
)

// tokenRoutes are the routes of tokens.
type tokenRoutes struct {
	access *access.Access // nil: none
}

func (s *tokenRoutes) routes() []route {
	return []route{
		{"GET", "/v1/tokens", s.tokens},
		{"POST", "/v1/tokens", s.createToken},
		{"POST", "/v1/tokens/{id}/rotate", s.rotateToken},
		{"DELETE", "/v1/tokens/{id}", s.removeToken},
	}
}

// tokens answers GET /v1/tokens.
func (s *tokenRoutes) tokens(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(a.Tokens(identityOf(r).Tenant), tokenOf))
}

func tokenOf(t access.Token) api.Token {
	return api.Token{
		ID: t.ID, Name: t.Name, Tenant: t.Tenant, Scopes: list(t.Scopes, func(s access.Scope) string { return string(s) }),
		Created: t.Created, Expires: t.Expires, LastUsed: t.LastUsed, Replaced: t.Replaced,
		AccessKey: t.AccessKey,
	}
}

// maxSeconds keeps seconds from overflowing a time.Duration.
const maxSeconds = 100 * 365 * 24 * 3600

func seconds(field string, n int64) (time.Duration, error) {
	if n < 0 || n > maxSeconds {
		return 0, badRequest("%s: %d is not from 0 to a hundred years", field, n)
	}
	return time.Duration(n) * time.Second, nil
}

// createToken answers POST /v1/tokens. A caller of one tenant can only create tokens of the same
// tenant.
func (s *tokenRoutes) createToken(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	var req api.TokenRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	noteOn(r, req.Name)
	if !identityOf(r).Of(req.Tenant) {
		return &scopeError{notOfTenant("the token would be of another tenant"), access.Admin}
	}
	life, err := seconds("life_seconds", req.LifeSeconds)
	if err != nil {
		return err
	}
	t, text, err := a.CreateToken(access.TokenOptions{
		Name: req.Name, Tenant: req.Tenant, Scopes: list(req.Scopes, func(s string) access.Scope { return access.Scope(s) }), Life: life,
		AccessKey: req.AccessKey,
	})
	if err != nil {
		return err
	}
	noteOn(r, t.ID)
	return newToken(w, t, text)
}

func newToken(w http.ResponseWriter, t access.Token, text string) error {
	w.Header().Set("Cache-Control", "no-store")
	out := api.NewToken{Token: tokenOf(t), Text: text}
	if t.AccessKey != "" {
		_, out.SecretAccessKey = access.AccessKey(text)
	}
	return reply(w, http.StatusCreated, out)
}

// rotateToken answers POST /v1/tokens/{id}/rotate.
func (s *tokenRoutes) rotateToken(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	var req api.TokenRotation
	if err := decode(w, r, &req); err != nil {
		return err
	}
	grace, err := seconds("grace_seconds", req.GraceSeconds)
	if err != nil {
		return err
	}
	t, text, err := a.RotateToken(r.PathValue("id"), grace)
	if err != nil {
		return err
	}
	return newToken(w, t, text)
}

// removeToken answers DELETE /v1/tokens/{id}.
func (s *tokenRoutes) removeToken(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	if err := a.RemoveToken(r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *tokenRoutes) find(r *http.Request) (string, error) {
	t, err := s.access.Token(r.PathValue("id"))
	return t.Tenant, err
}
