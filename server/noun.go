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

// noun is a kind of object that a path names and that belongs to a tenant.
type noun struct {
	name string
	list string // the command that lists those that are there
	// find says whose the object is, and fs.ErrNotExist where there is none. Where a
	// path may hold a part of the object's id, find looks among those of who asks, and
	// writes the whole id into the request for the handler.
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

// shown is the one decision about what a caller learns of an object that tenant has, or
// that err says is not there: nil where it is the caller's. To a token of one tenant an
// object of another is answered by the very words with which one is that nobody has.
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
		Code: api.CodeNotFound, Status: http.StatusNotFound,
		Message: fmt.Sprintf("tenant %s has no %s %q", id.Tenant, n.name, name), Next: "see those that it has: " + n.list,
	}
}

func findFunction(s *server, r *http.Request) (string, error) {
	name, _, _ := strings.Cut(r.PathValue("name"), "@") // the function of NAME@REVISION
	f, err := s.engine.Function(name)
	if err != nil {
		return "", err
	}
	return functionTenant(f), nil
}

// imageFor finds an image for who asks, with what find and among what all return. A digest
// cut short is one of those that the caller may see, whatever others begin so.
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

// visibleImage finds an image for who asks, who learns of no other.
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
		if b.Name == ref && ref != "" || b.ID == ref { // a container's name counts before ids that begin so
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
