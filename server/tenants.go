package server

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/failure"
)

// tenantRoutes are the routes of tenants and their secrets.
type tenantRoutes struct {
	engine Engine
	access *access.Access  // nil: none
	events *events.Service // nil: none
}

func (s *tenantRoutes) routes() []route {
	return []route{
		{"GET", "/v1/whoami", s.whoami},
		{"GET", "/v1/tenants", s.tenants},
		{"POST", "/v1/tenants", s.createTenant},
		{"GET", "/v1/tenants/{tenant}", s.tenant},
		{"DELETE", "/v1/tenants/{tenant}", s.removeTenant},
		{"POST", "/v1/tenants/{tenant}/quotas", s.setQuotas},
		{"GET", "/v1/tenants/{tenant}/secrets", s.secrets},
		{"POST", "/v1/tenants/{tenant}/secrets/{secret}", s.putSecret},
		{"DELETE", "/v1/tenants/{tenant}/secrets/{secret}", s.removeSecret},
		{"POST", "/v1/secrets/rotate-key", s.rotateKey},
	}
}

// recordsOf returns the tenants' records, or an error if the engine keeps none.
func recordsOf(a *access.Access) (*access.Access, error) {
	if a == nil {
		return nil, &api.Error{Code: failure.Unsupported, Message: "the engine keeps no records of tenants"}
	}
	return a, nil
}

// find serves the guard: a tenant owns its record.
func (s *tenantRoutes) find(r *http.Request) (string, error) { return r.PathValue("tenant"), nil }

// whoami answers GET /v1/whoami.
func (s *tenantRoutes) whoami(w http.ResponseWriter, r *http.Request) error {
	id := identityOf(r)
	return reply(w, http.StatusOK, api.Identity{Who: id.Who, Tenant: id.Tenant, Scopes: list(id.Scopes, func(s access.Scope) string { return string(s) })})
}

// tenantsOf returns all tenants with a record, and tenants without a record that own functions,
// containers or files.
func (s *tenantRoutes) tenantsOf(a *access.Access) ([]api.Tenant, error) {
	all := map[string]*api.Tenant{}
	get := func(name string) *api.Tenant {
		t := all[name]
		if t == nil {
			t = &api.Tenant{Name: name}
			all[name] = t
		}
		return t
	}
	for _, t := range a.Tenants() {
		shown := get(t.Name)
		shown.Created, shown.Quotas = t.Created, api.Quotas(t.Quotas)
	}
	for _, f := range s.engine.Functions() {
		get(functionTenant(f)).Functions++
	}
	for _, c := range s.engine.Containers(true) {
		get(c.Config.Tenant)
	}
	disk, err := s.engine.DiskUsage()
	if err != nil {
		return nil, err
	}
	for _, u := range disk.Tenants {
		if u.Name[0] != '_' { // the engine's own volumes
			get(u.Name).WorkBytes = u.Bytes
		}
	}
	out := make([]api.Tenant, 0, len(all))
	for _, t := range all {
		use := s.engine.TenantUse(t.Name)
		t.Instances, t.Containers, t.MemoryBytes, t.CPUMillis, t.Images, t.ImageBytes = use.Instances, use.Containers, use.MemoryBytes, use.CPUMillis, use.Images, use.ImageBytes
		t.Builds, t.WaitingBuilds = use.Builds, use.WaitingBuilds
		out = append(out, *t)
	}
	slices.SortFunc(out, func(x, y api.Tenant) int { return cmp.Compare(x.Name, y.Name) })
	return out, nil
}

// tenants answers GET /v1/tenants.
func (s *tenantRoutes) tenants(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	all, err := s.tenantsOf(a)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(only(all, identityOf(r), func(t api.Tenant) string { return t.Name }), func(t api.Tenant) api.Tenant { return t }))
}

// tenant answers GET /v1/tenants/{tenant}.
func (s *tenantRoutes) tenant(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	t, err := s.oneTenant(a, r.PathValue("tenant"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, t)
}

func (s *tenantRoutes) oneTenant(a *access.Access, name string) (api.Tenant, error) {
	all, err := s.tenantsOf(a)
	if err != nil {
		return api.Tenant{}, err
	}
	i := slices.IndexFunc(all, func(t api.Tenant) bool { return t.Name == name })
	if i < 0 {
		return api.Tenant{}, fmt.Errorf("tenant %q: %w", name, fs.ErrNotExist)
	}
	return all[i], nil
}

// createTenant answers POST /v1/tenants.
func (s *tenantRoutes) createTenant(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	var req api.TenantRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	noteOn(r, req.Name)
	if _, err := a.CreateTenant(req.Name, access.Quotas(req.Quotas)); err != nil {
		return err
	}
	t, err := s.oneTenant(a, req.Name)
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, t)
}

// setQuotas answers POST /v1/tenants/{tenant}/quotas.
func (s *tenantRoutes) setQuotas(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	var q api.Quotas
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if _, err := a.SetQuotas(r.PathValue("tenant"), access.Quotas(q)); err != nil {
		return err
	}
	t, err := s.oneTenant(a, r.PathValue("tenant"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, t)
}

// removeTenant answers DELETE /v1/tenants/{tenant}.
func (s *tenantRoutes) removeTenant(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	name := r.PathValue("tenant")
	for _, f := range s.engine.Functions() {
		if functionTenant(f) == name {
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("tenant %s has the function %s", name, f.Name), Next: "remove its functions first (fre function rm)"}
		}
	}
	if s.events != nil { // first, because a failure can be retried only while the record exists
		if err := s.events.RemoveTenant(r.Context(), name); err != nil {
			return err
		}
	}
	if err := a.RemoveTenant(name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// secrets answers GET /v1/tenants/{tenant}/secrets.
func (s *tenantRoutes) secrets(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	all, err := a.Secrets(r.PathValue("tenant"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(all, func(s access.Secret) api.Secret {
		return api.Secret{Name: s.Name, Bytes: s.Bytes, Updated: s.Updated, Node: s.Node}
	}))
}

// putSecret answers POST /v1/tenants/{tenant}/secrets/{secret}?update=. The body is the value.
func (s *tenantRoutes) putSecret(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	q := queryOf(r)
	update := q.flag("update")
	if q.err != nil {
		return q.err
	}
	if t := mediaType(r); t != "application/octet-stream" {
		return badRequest("Content-Type is %q: send the value as application/octet-stream", t)
	}
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, access.MaxSecretBytes))
	defer clear(value)
	if err != nil {
		return fmt.Errorf("read value: %w", err)
	}
	mode, status := access.Create, http.StatusCreated
	if update {
		mode, status = access.Update, http.StatusNoContent
	}
	if err := a.PutSecret(r.PathValue("tenant"), r.PathValue("secret"), value, mode); err != nil {
		return err
	}
	w.WriteHeader(status)
	return nil
}

// removeSecret answers DELETE /v1/tenants/{tenant}/secrets/{secret}, and refuses while a
// function uses the secret.
func (s *tenantRoutes) removeSecret(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	tenant, name := r.PathValue("tenant"), r.PathValue("secret")
	for _, f := range s.engine.Functions() {
		if functionTenant(f) == tenant && slices.Contains(f.Config.SecretNames(), name) {
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("the function %s reads the secret %s", f.Name, name), Next: "first deploy the function without the secret, or remove the function"}
		}
	}
	if err := a.RemoveSecret(tenant, name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// rotateKey answers POST /v1/secrets/rotate-key.
func (s *tenantRoutes) rotateKey(w http.ResponseWriter, _ *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	if err := a.RotateKey(); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
