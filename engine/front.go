package engine

import (
	"strings"

	"github.com/fre-engine/fre/image"
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

// Front returns the policy of a function, or of one revision for NAME@REVISION; false if
// unknown. Front takes no lock. If events are split, the policy is the main revision's, with the
// strictest access of all revisions that may get the events.
func (e *Engine) Front(name string) (Front, bool) {
	name, revision, asked := strings.Cut(name, "@")
	d, err := e.find(name)
	if err != nil {
		return Front{}, false
	}
	if !asked {
		return d.front, true
	}
	number, err := d.spec.resolve(d.name, revision)
	if err != nil {
		return Front{}, false
	}
	if f := d.live[number]; f != nil {
		return f.front(), true
	}
	img, err := e.cfg.Store.Image(string(d.spec.revision(number).Image))
	if err != nil {
		return Front{}, false
	}
	cfg, err := image.ConfigOf(img)
	if err != nil {
		return Front{}, false
	}
	return Front{Tenant: d.main.config.Tenant, Access: cfg.Access, CORS: cfg.CORS}, true
}

func (p *program) front() Front {
	return Front{Tenant: p.config.Tenant, Access: p.config.Access, CORS: p.config.CORS}
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
