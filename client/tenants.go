package client

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fre-engine/fre/api"
)

// Whoami returns the client's identity, as known to the engine.
func (c *Client) Whoami(ctx context.Context) (api.Identity, error) {
	return get[api.Identity](ctx, c, "/v1/whoami", nil)
}

// Tenants works on tenants and their quotas.
type Tenants struct{ c *Client }

// Tenants returns the calls for tenants.
func (c *Client) Tenants() Tenants { return Tenants{c} }

// List returns all tenants with their usage.
func (g Tenants) List(ctx context.Context) ([]api.Tenant, error) {
	return get[[]api.Tenant](ctx, g.c, "/v1/tenants", nil)
}

// Get returns the tenant with the given name.
func (g Tenants) Get(ctx context.Context, name string) (api.Tenant, error) {
	return get[api.Tenant](ctx, g.c, "/v1/tenants/"+url.PathEscape(name), nil)
}

// Create creates a tenant's record.
func (g Tenants) Create(ctx context.Context, r api.TenantRequest) (api.Tenant, error) {
	return post[api.Tenant](ctx, g.c, "/v1/tenants", r)
}

// SetQuotas replaces a tenant's quotas.
func (g Tenants) SetQuotas(ctx context.Context, tenant string, q api.Quotas) (api.Tenant, error) {
	return post[api.Tenant](ctx, g.c, "/v1/tenants/"+url.PathEscape(tenant)+"/quotas", q)
}

// Remove removes a tenant's record, tokens, secrets and events.
func (g Tenants) Remove(ctx context.Context, name string) error {
	return g.c.call(ctx, http.MethodDelete, "/v1/tenants/"+url.PathEscape(name), nil, "", nil, nil)
}

// Tokens works on the tokens of the API.
type Tokens struct{ c *Client }

// Tokens returns the calls for tokens.
func (c *Client) Tokens() Tokens { return Tokens{c} }

// List returns the tokens.
func (g Tokens) List(ctx context.Context) ([]api.Token, error) {
	return get[[]api.Token](ctx, g.c, "/v1/tokens", nil)
}

// Create creates a token.
func (g Tokens) Create(ctx context.Context, r api.TokenRequest) (api.NewToken, error) {
	return post[api.NewToken](ctx, g.c, "/v1/tokens", r)
}

// Rotate replaces a token.
func (g Tokens) Rotate(ctx context.Context, id string, r api.TokenRotation) (api.NewToken, error) {
	return post[api.NewToken](ctx, g.c, "/v1/tokens/"+url.PathEscape(id)+"/rotate", r)
}

// Remove revokes a token.
func (g Tokens) Remove(ctx context.Context, id string) error {
	return g.c.call(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, "", nil, nil)
}

// Secrets works on tenants' secrets.
type Secrets struct{ c *Client }

// Secrets returns the calls for secrets.
func (c *Client) Secrets() Secrets { return Secrets{c} }

// List returns a tenant's secrets, without the values.
func (g Secrets) List(ctx context.Context, tenant string) ([]api.Secret, error) {
	return get[[]api.Secret](ctx, g.c, "/v1/tenants/"+url.PathEscape(tenant)+"/secrets", nil)
}

// PutOptions adjust PutSecret.
type PutOptions struct {
	Update bool // replace an existing secret instead of creating a new one
}

// Put stores a secret's value.
func (g Secrets) Put(ctx context.Context, tenant, name string, value []byte, o PutOptions) error {
	q := url.Values{"update": {strconv.FormatBool(o.Update)}}
	return g.c.call(ctx, http.MethodPost, "/v1/tenants/"+url.PathEscape(tenant)+"/secrets/"+url.PathEscape(name), q, "application/octet-stream", bytes.NewReader(value), nil)
}

// Remove removes a secret.
func (g Secrets) Remove(ctx context.Context, tenant, name string) error {
	return g.c.call(ctx, http.MethodDelete, "/v1/tenants/"+url.PathEscape(tenant)+"/secrets/"+url.PathEscape(name), nil, "", nil, nil)
}

// RotateKey seals all secrets with a new key.
func (g Secrets) RotateKey(ctx context.Context) error {
	return g.c.call(ctx, http.MethodPost, "/v1/secrets/rotate-key", nil, "", nil, nil)
}
