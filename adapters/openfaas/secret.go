package openfaas

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/openfaas/faas-provider/types"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
)

// secrets answers GET /system/secrets with names, never values.
func (h *handler) secrets(w http.ResponseWriter, r *request) error {
	tenant, err := r.tenant(r.URL.Query().Get("namespace"))
	if err != nil {
		return err
	}
	all, err := h.Access.Secrets(tenant)
	if err != nil {
		return err
	}
	out := make([]types.Secret, len(all))
	for i, s := range all {
		out[i] = types.Secret{Name: s.Name, Namespace: namespaceOf(tenant)}
	}
	return reply(w, out)
}

// secretOf parses a request about a secret and returns the secret's tenant.
func secretOf(w http.ResponseWriter, r *request) (s types.Secret, tenant string, err error) {
	if err := decode(w, r, &s); err != nil {
		return s, "", err
	}
	r.on = s.Name
	if s.Namespace == "" {
		s.Namespace = r.URL.Query().Get("namespace")
	}
	tenant, err = r.tenant(s.Namespace)
	return s, tenant, err
}

// putSecret answers POST and PUT /system/secrets. PUT requires an existing secret.
func (h *handler) putSecret(w http.ResponseWriter, r *request) error {
	s, tenant, err := secretOf(w, r)
	if err != nil {
		return err
	}
	value := s.RawValue
	if len(value) == 0 {
		value = []byte(s.Value)
	}
	defer clear(value)
	mode := access.Create
	if r.Method == http.MethodPut {
		mode = access.Update
	}
	if err := h.Access.PutSecret(tenant, s.Name, value, mode); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// removeSecret answers DELETE /system/secrets, and refuses while a function uses the secret.
func (h *handler) removeSecret(w http.ResponseWriter, r *request) error {
	s, tenant, err := secretOf(w, r)
	if err != nil {
		return err
	}
	for _, f := range h.Engine.Functions() {
		if f.Config.Tenant == tenant && slices.Contains(f.Config.SecretNames(), s.Name) {
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("the function %s reads the secret %s", f.Name, s.Name), Next: "first deploy the function without the secret, or remove the function"}
		}
	}
	if err := h.Access.RemoveSecret(tenant, s.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}
