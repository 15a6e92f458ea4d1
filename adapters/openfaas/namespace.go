package openfaas

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/openfaas/faas-provider/types"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/template"
)

// tenants returns the namespaces visible to the caller: tenants with a record or a function.
func (h *handler) tenants(r *request) []string {
	if !r.id.All() {
		return []string{namespaceOf(r.id.Tenant)}
	}
	all := map[string]bool{namespaceOf(template.DefaultTenant): true}
	for _, t := range h.Access.Tenants() {
		all[namespaceOf(t.Name)] = true
	}
	for _, f := range h.Engine.Functions() {
		all[namespaceOf(f.Config.Tenant)] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// namespaces answers GET /system/namespaces.
func (h *handler) namespaces(w http.ResponseWriter, r *request) error {
	return reply(w, h.tenants(r))
}

// namespace answers GET /system/namespace/{name}.
func (h *handler) namespace(w http.ResponseWriter, r *request) error {
	name := r.PathValue("name")
	if !slices.Contains(h.tenants(r), name) {
		return notFound("no namespace %q", name)
	}
	return reply(w, types.FunctionNamespace{Name: name})
}

// createNamespace answers POST /system/namespace/: creates a tenant without quotas.
func (h *handler) createNamespace(w http.ResponseWriter, r *request) error {
	var n types.FunctionNamespace
	if err := decode(w, r, &n); err != nil {
		return err
	}
	delete(n.Annotations, "openfaas") // set by faas-cli on its namespaces
	delete(n.Labels, "openfaas")
	if r.on = n.Name; len(n.Labels)+len(n.Annotations) > 0 {
		return badRequest("a tenant has neither labels nor annotations: leave both out")
	}
	if err := ofAll(r); err != nil {
		return err
	}
	if n.Name == gateway.OpenFaaSNamespace {
		return fmt.Errorf("namespace %s: %w", n.Name, access.ErrExists)
	}
	if _, err := h.Access.CreateTenant(n.Name, access.Quotas{}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

// removeNamespace answers DELETE /system/namespace/{name}: removes a tenant without functions.
func (h *handler) removeNamespace(w http.ResponseWriter, r *request) error {
	r.on = r.PathValue("name")
	if err := ofAll(r); err != nil {
		return err
	}
	for _, f := range h.Engine.Functions() {
		if f.Config.Tenant == r.on {
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s has the function %s", r.on, f.Name), Next: "remove its functions first"}
		}
	}
	if h.Events != nil {
		if err := h.Events.RemoveTenant(r.Context(), r.on); err != nil {
			return err
		}
	}
	if err := h.Access.RemoveTenant(r.on); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func ofAll(r *request) error {
	if r.id.All() {
		return nil
	}
	return fmt.Errorf("%w: tenants are made and removed with a token of all tenants", access.ErrForbidden)
}
