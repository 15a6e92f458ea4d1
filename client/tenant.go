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

// Tenants returns all tenants with their usage.
func (c *Client) Tenants(ctx context.Context) ([]api.Tenant, error) {
	return get[[]api.Tenant](ctx, c, "/v1/tenants", nil)
}

// Tenant returns the tenant with the given name.
func (c *Client) Tenant(ctx context.Context, name string) (api.Tenant, error) {
	return get[api.Tenant](ctx, c, "/v1/tenants/"+url.PathEscape(name), nil)
}

// CreateTenant creates a tenant's record.
func (c *Client) CreateTenant(ctx context.Context, r api.TenantRequest) (api.Tenant, error) {
	return post[api.Tenant](ctx, c, "/v1/tenants", r)
}

// SetQuotas replaces a tenant's quotas.
func (c *Client) SetQuotas(ctx context.Context, tenant string, q api.Quotas) (api.Tenant, error) {
	return post[api.Tenant](ctx, c, "/v1/tenants/"+url.PathEscape(tenant)+"/quotas", q)
}

// RemoveTenant removes a tenant's record, tokens, secrets and events.
func (c *Client) RemoveTenant(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/tenants/"+url.PathEscape(name), nil, "", nil, nil)
}

// Tokens returns the tokens.
func (c *Client) Tokens(ctx context.Context) ([]api.Token, error) {
	return get[[]api.Token](ctx, c, "/v1/tokens", nil)
}

// CreateToken creates a token.
func (c *Client) CreateToken(ctx context.Context, r api.TokenRequest) (api.NewToken, error) {
	return post[api.NewToken](ctx, c, "/v1/tokens", r)
}

// RotateToken replaces a token.
func (c *Client) RotateToken(ctx context.Context, id string, r api.TokenRotation) (api.NewToken, error) {
	return post[api.NewToken](ctx, c, "/v1/tokens/"+url.PathEscape(id)+"/rotate", r)
}

// RemoveToken revokes a token.
func (c *Client) RemoveToken(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, "", nil, nil)
}

// Secrets returns a tenant's secrets, without the values.
func (c *Client) Secrets(ctx context.Context, tenant string) ([]api.Secret, error) {
	return get[[]api.Secret](ctx, c, "/v1/tenants/"+url.PathEscape(tenant)+"/secrets", nil)
}

// PutOptions adjust PutSecret.
type PutOptions struct {
	Update bool // replace an existing secret instead of creating a new one
}

// PutSecret stores a secret's value.
func (c *Client) PutSecret(ctx context.Context, tenant, name string, value []byte, o PutOptions) error {
	q := url.Values{"update": {strconv.FormatBool(o.Update)}}
	return c.call(ctx, http.MethodPost, "/v1/tenants/"+url.PathEscape(tenant)+"/secrets/"+url.PathEscape(name), q, "application/octet-stream", bytes.NewReader(value), nil)
}

// RemoveSecret removes a secret.
func (c *Client) RemoveSecret(ctx context.Context, tenant, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/tenants/"+url.PathEscape(tenant)+"/secrets/"+url.PathEscape(name), nil, "", nil, nil)
}

// RotateKey seals all secrets with a new key.
func (c *Client) RotateKey(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/secrets/rotate-key", nil, "", nil, nil)
}
