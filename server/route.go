package server

import (
	"fmt"
	"net/http"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
)

// noun is a kind of object that a path names and a tenant owns.
type noun struct {
	name string
	list string // command that lists the objects
}

// finder returns the tenant of the object in the path, or fs.ErrNotExist. If the path has only a
// prefix of the id, the finder searches the caller's objects and stores the full id in the
// request, for the handler.
type finder func(*http.Request) (tenant string, err error)

var (
	ofFunction = &noun{"function", "fre functions"}
	ofImage    = &noun{"image", "fre images"}
	ofSnapshot = &noun{"snapshot", "fre agent snapshots"}
	ofSandbox  = &noun{"sandbox", "fre ps --all"}
	ofAgent    = &noun{"agent's sandbox", "fre agent ls"}
	ofEvent    = &noun{"event", "fre events ls"}
	ofToken    = &noun{"token", "fre token ls"}
	ofTenant   = &noun{"tenant", "fre tenant ls"}
)

// shown is the only decision about access to an object owned by tenant, or missing according to
// err. shown returns nil if the caller may access the object. For a token of one tenant, shown
// returns the same error for another tenant's object as for a missing object, so a caller cannot
// probe for foreign objects.
func (n *noun) shown(id access.Identity, name, tenant string, err error) error {
	switch {
	case id.All():
		return err
	case err == nil && id.Of(tenant):
		return nil
	case err != nil && errorOf(err).Status != http.StatusNotFound:
		return err
	}
	return &api.Error{
		Code:    api.CodeNotFound,
		Message: fmt.Sprintf("tenant %s has no %s %q", id.Tenant, n.name, name), Next: "list the tenant's objects: " + n.list,
	}
}

// route is one route of the API. A handler may return an error only if no part of the answer was
// sent.
type route struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request) error
}
