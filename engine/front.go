package engine

import (
	"strings"

	"github.com/fre-engine/fre/image"
)

// CORS is what templates say of other origins.
type CORS = image.CORS

// Front is what stands before a function's events: asked for each request, without a lock.
type Front struct {
	Tenant string
	Access image.Access // "" where the template says nothing
	CORS   *CORS        // likewise nil
}

// Front finds a function's; false where there is no such function. Whoever asks for one
// of its revisions (NAME@REVISION) meets what the main one says.
func (e *Engine) Front(name string) (Front, bool) {
	name, _, _ = strings.Cut(name, "@")
	f, err := e.lookup(name)
	if err != nil {
		return Front{}, false
	}
	return Front{Tenant: f.config.Tenant, Access: f.config.Access, CORS: f.config.CORS}, true
}
