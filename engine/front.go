package engine

import (
	"strings"

	"github.com/fre-engine/fre/image"
)

// CORS is what templates say of other origins.
type CORS = image.CORS

// What templates say of who may call.
const (
	AccessToken = image.AccessToken
	AccessOpen  = image.AccessOpen
)

// Front is what stands before a function's events: asked for each request, without a lock.
type Front struct {
	Tenant string
	Access image.Access // "" where the template says nothing
	CORS   *CORS        // likewise nil
}

// Front finds that of a function, or of the one revision that NAME@REVISION asks for;
// false where there is none. Of a function whose events are split, it is the main
// revision's, with the strictest access of those that events may go to.
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

func (f *function) front() Front {
	return Front{Tenant: f.config.Tenant, Access: f.config.Access, CORS: f.config.CORS}
}

// strictest is the stricter of two: a token, what the engine says, open.
func strictest(a, b image.Access) image.Access {
	switch {
	case a == AccessToken || b == AccessToken:
		return AccessToken
	case a == "" || b == "":
		return ""
	}
	return AccessOpen
}
