package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/store"
)

// noun is a kind of object that a path names and a tenant owns.
type noun struct {
	name string
	list string // command that lists the objects
	// find returns the tenant of the object in the path, or fs.ErrNotExist. If the path has only
	// a prefix of the id, find searches the caller's objects and stores the full id in the
	// request, for the handler.
	find func(*server, *http.Request) (tenant string, err error)
}

var (
	ofFunction = &noun{"function", "fre functions", findFunction}
	ofImage    = &noun{"image", "fre images", (*server).findImage}
	ofSnapshot = &noun{"snapshot", "fre agent snapshots", (*server).findSnapshot}
	ofSandbox  = &noun{"sandbox", "fre ps --all", findSandbox}
	ofAgent    = &noun{"agent's sandbox", "fre agent ls", findAgent}
	ofEvent    = &noun{"event", "fre events ls", findEvent}
	ofToken    = &noun{"token", "fre token ls", findToken}
	ofTenant   = &noun{"tenant", "fre tenant ls", func(_ *server, r *http.Request) (string, error) { return r.PathValue("tenant"), nil }}
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

func findFunction(s *server, r *http.Request) (string, error) {
	name, _, _ := strings.Cut(r.PathValue("name"), "@") // function name in NAME@REVISION
	f, err := s.engine.Function(name)
	if err != nil {
		return "", err
	}
	return functionTenant(f), nil
}

// imageFor returns the image named ref, as far as the caller may see the image. find looks up
// ref, and all lists the candidates. A digest prefix is matched only against the caller's
// images, even if foreign digests share the prefix.
func imageFor(r *http.Request, ref string, find func(string) (*store.Image, error), all func() []*store.Image) (*store.Image, error) {
	img, err := find(ref)
	id := identityOf(r)
	if id.All() || err == nil && id.Of(engine.ImageTenant(img)) || err != nil && !errors.Is(err, store.ErrAmbiguous) {
		return img, err
	}
	prefix := "sha256:" + strings.TrimPrefix(ref, "sha256:")
	var own *store.Image
	for _, other := range only(all(), id, engine.ImageTenant) {
		switch {
		case !strings.HasPrefix(string(other.Digest), prefix):
		case own != nil:
			return nil, fmt.Errorf("image %q: %w: %s and %s", ref, store.ErrAmbiguous, own.Digest, other.Digest)
		default:
			own = other
		}
	}
	if own == nil {
		return nil, fmt.Errorf("image %q: %w", ref, fs.ErrNotExist)
	}
	return own, nil
}

// visibleImage returns the image named ref, or the error of shown if the caller may not see the
// image.
func (s *server) visibleImage(r *http.Request, ref string) (*store.Image, error) {
	img, err := imageFor(r, ref, s.engine.Image, s.allImages)
	return img, ofImage.shown(identityOf(r), ref, tenantOf(img), err)
}

func (s *server) allImages() []*store.Image {
	all, _ := s.engine.ImageList()
	return all
}

func tenantOf(img *store.Image) string {
	if img == nil {
		return ""
	}
	return engine.ImageTenant(img)
}

func (s *server) findImage(r *http.Request) (string, error) {
	return pinImage(r, s.engine.Image, s.allImages)
}

func (s *server) findSnapshot(r *http.Request) (string, error) {
	e, err := s.agents()
	if err != nil {
		return "", err
	}
	return pinImage(r, e.Snapshot, e.Snapshots)
}

func pinImage(r *http.Request, find func(string) (*store.Image, error), all func() []*store.Image) (string, error) {
	ref := r.PathValue("ref")
	img, err := imageFor(r, ref, find, all)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(string(img.Digest), "sha256:"+strings.TrimPrefix(ref, "sha256:")) {
		r.SetPathValue("ref", string(img.Digest))
	}
	return engine.ImageTenant(img), nil
}

func findSandbox(s *server, r *http.Request) (string, error) {
	ref := r.PathValue("id")
	var found *engine.Sandbox
	for _, b := range only(s.engine.Sandboxes(true), identityOf(r), sandboxTenant) {
		if b.Name == ref && ref != "" || b.ID == ref { // a container's name takes precedence over id prefixes
			found = b
			break
		}
		if !strings.HasPrefix(b.ID, ref) {
			continue
		}
		if found != nil {
			return "", fmt.Errorf("sandbox %q: %w", ref, store.ErrAmbiguous)
		}
		found = b
	}
	if found == nil {
		return "", fmt.Errorf("sandbox %q: %w", ref, fs.ErrNotExist)
	}
	r.SetPathValue("id", found.ID)
	return sandboxTenant(found), nil
}

func findAgent(s *server, r *http.Request) (string, error) {
	e, err := s.agents()
	if err != nil {
		return "", err
	}
	a, err := e.Agent(r.PathValue("id"))
	if err != nil {
		return "", err
	}
	return a.Tenant, nil
}

func findEvent(s *server, r *http.Request) (string, error) {
	ev, err := s.queueService()
	if err != nil {
		return "", err
	}
	d, err := ev.Find(r.Context(), r.PathValue("id"))
	if err != nil {
		return "", err
	}
	return d.Tenant, nil
}

func findToken(s *server, r *http.Request) (string, error) {
	t, err := s.cfg.Access.Token(r.PathValue("id"))
	return t.Tenant, err
}
