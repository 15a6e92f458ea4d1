package engine

import (
	"github.com/fre-engine/fre/template"
)

// CORS is a template's policy for cross-origin requests.
type CORS = template.CORS

// Values of a template's access.
const (
	AccessToken = template.AccessToken
	AccessOpen  = template.AccessOpen
)

// Front is a function's policy for incoming requests. Gateways read the policy at each request.
type Front struct {
	Tenant string
	Access template.Access // "" if the template sets none
	CORS   *CORS           // nil if the template sets none
}

// strictest returns the stricter access. From strict to lax: token, the engine's default (""),
// open.
func strictest(a, b template.Access) template.Access {
	switch {
	case a == AccessToken || b == AccessToken:
		return AccessToken
	case a == "" || b == "":
		return ""
	}
	return AccessOpen
}
