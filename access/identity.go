package access

import (
	"fmt"
	"slices"
	"strings"
)

// Scope is a permission of a token.
type Scope string

// The scopes. Admin includes the rest; Deploy includes Read.
const (
	Deploy Scope = "deploy" // build, deploy and remove functions, write secrets
	Invoke Scope = "invoke" // call functions
	Read   Scope = "read"   // lists, logs, metrics; names of secrets, never their values
	Admin  Scope = "admin"  // tokens; with all tenants: tenants, quotas, and the engine itself
)

// Scopes returns all scopes.
func Scopes() []Scope { return []Scope{Deploy, Invoke, Read, Admin} }

// AllTenants is the Tenant of an identity that may act for any tenant.
const AllTenants = "*"

// Identity is an authenticated client.
type Identity struct {
	Who    string  // for the audit log: "root", "token ci (5f2c…)", "oidc SUBJECT at ISSUER"
	Tenant string  // AllTenants for all
	Scopes []Scope //
}

// Root returns the identity of a user of the control socket, who may do everything.
func Root(who string) Identity {
	return Identity{Who: who, Tenant: AllTenants, Scopes: []Scope{Admin}}
}

// All reports whether the identity may act for any tenant.
func (i Identity) All() bool { return i.Tenant == AllTenants }

// Of reports whether the identity may see a tenant's objects.
func (i Identity) Of(tenant string) bool { return i.All() || i.Tenant == tenant }

// Has reports whether the identity has the scope.
func (i Identity) Has(s Scope) bool {
	return slices.Contains(i.Scopes, s) || slices.Contains(i.Scopes, Admin) || s == Read && slices.Contains(i.Scopes, Deploy)
}

// Need returns ErrForbidden, naming the missing scope, unless the identity has the scope.
func (i Identity) Need(s Scope) error {
	if i.Has(s) {
		return nil
	}
	return fmt.Errorf("%w: the request needs the scope %s", ErrForbidden, s)
}

// ParseScopes reads a list of scopes, separated by commas or spaces.
func ParseScopes(list string) ([]Scope, error) {
	var out []Scope
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		if !slices.Contains(Scopes(), Scope(s)) {
			return nil, fmt.Errorf("scope %q is %w: deploy, invoke, read or admin", s, ErrName)
		}
		if !slices.Contains(out, Scope(s)) {
			out = append(out, Scope(s))
		}
	}
	return out, nil
}
