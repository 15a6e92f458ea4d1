package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/server/listing"
	"github.com/fre-engine/fre/store"
)

// imageRoutes are the routes of images.
type imageRoutes struct {
	engine    Engine
	log       *slog.Logger
	imageList listing.Cache[store.Image]
}

func (s *imageRoutes) routes() []route {
	return []route{
		{"GET", "/v1/images", s.images},
		{"GET", "/v1/images/{ref}", s.image},
		{"DELETE", "/v1/images/{ref}", s.removeImage},
		{"GET", "/v1/images/{ref}/history", s.imageHistory},
		{"GET", "/v1/images/{ref}/sbom", s.imageSBOM},
		{"POST", "/v1/images/{ref}/tag", s.tagImage},
	}
}

// images answers GET /v1/images?since=.
func (s *imageRoutes) images(w http.ResponseWriter, r *http.Request) error {
	images, generation := s.engine.ImageList()
	if id := identityOf(r); !id.All() {
		if r.URL.Query().Has("since") {
			return &api.Error{Code: api.CodeForbidden, Message: "changes of images are for tokens of all tenants", Next: "read the list without since"}
		}
		return reply(w, http.StatusOK, list(only(images, id, build.ImageTenant), imageOf))
	}
	if r.URL.RawQuery != "" {
		if v := r.URL.Query().Get("since"); v != "" {
			since, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				return badRequest("since: %q is not a generation", v)
			}
			return reply(w, http.StatusOK, s.imageChanges(images, generation, since))
		}
	}
	body, err := s.imageList.At(generation, func() []*store.Image { return images })
	if err != nil {
		return err
	}
	body.ServeHTTP(w, r)
	return nil
}

// imageChanges returns the changes since a generation, up to the generation of images.
func (s *imageRoutes) imageChanges(images []*store.Image, generation, since uint64) api.ImageChanges {
	out := api.ImageChanges{Generation: generation, Changed: []api.Image{}, Removed: []string{}}
	changes, ok := s.engine.Changes().Since(since)
	if !ok {
		out.Complete, out.Changed = true, list(images, imageOf)
		return out
	}
	changed := make(map[string]bool)
	for _, c := range changes {
		if c.Kind == store.ChangeImage && c.ID != "" && c.Generation <= generation {
			changed[c.ID] = true
		}
	}
	if len(changed) == 0 {
		return out
	}
	for _, img := range images {
		if changed[string(img.Digest)] {
			out.Changed = append(out.Changed, imageOf(img))
			delete(changed, string(img.Digest))
		}
	}
	for digest := range changed {
		out.Removed = append(out.Removed, digest)
	}
	slices.Sort(out.Removed)
	return out
}

// imageHistory answers GET /v1/images/{ref}/history, the last step first.
func (s *imageRoutes) imageHistory(w http.ResponseWriter, r *http.Request) error {
	steps, err := s.engine.History(r.PathValue("ref"))
	if err != nil {
		return err
	}
	slices.Reverse(steps)
	return reply(w, http.StatusOK, list(steps, func(x oci.Step) api.HistoryStep {
		return api.HistoryStep{Created: x.Created.UTC(), CreatedBy: x.CreatedBy, Author: x.Author, Comment: x.Comment, Size: x.Size}
	}))
}

// imageSBOM answers GET /v1/images/{ref}/sbom.
func (s *imageRoutes) imageSBOM(w http.ResponseWriter, r *http.Request) error {
	doc, err := s.engine.SBOM(r.PathValue("ref"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/vnd.cyclonedx+json")
	w.Header().Set("Content-Length", strconv.Itoa(len(doc)))
	_, _ = w.Write(doc) // the client may have disconnected
	return nil
}

func (s *imageRoutes) image(w http.ResponseWriter, r *http.Request) error {
	img, err := s.engine.Image(r.PathValue("ref"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.ImageDetails{Image: imageOf(img), Parts: list(img.Parts, partOf), Config: img.Config})
}

func (s *imageRoutes) tagImage(w http.ResponseWriter, r *http.Request) error {
	var req api.TagRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	img, err := s.engine.TagImage(r.Context(), r.PathValue("ref"), req.Name)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, imageOf(img))
}

// removeImage answers DELETE /v1/images/{ref}?force=.
func (s *imageRoutes) removeImage(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	force := q.flag("force")
	if q.err != nil {
		return q.err
	}
	gone, err := s.engine.RemoveImage(r.Context(), r.PathValue("ref"), build.RemoveOptions{Force: force})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.RemovedImage{Image: imageOf(gone.Image), Untagged: gone.Untagged, Deleted: gone.Deleted})
}

// imageFor returns the image named ref, as far as the caller may see the image. find looks up
// ref, and all lists the candidates. A digest prefix is matched only against the caller's
// images, even if foreign digests share the prefix.
func imageFor(r *http.Request, ref string, find func(string) (*store.Image, error), all func() []*store.Image) (*store.Image, error) {
	img, err := find(ref)
	id := identityOf(r)
	if id.All() || err == nil && id.Of(build.ImageTenant(img)) || err != nil && !errors.Is(err, store.ErrAmbiguous) {
		return img, err
	}
	prefix := "sha256:" + strings.TrimPrefix(ref, "sha256:")
	var own *store.Image
	for _, other := range only(all(), id, build.ImageTenant) {
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
func visibleImage(r *http.Request, e Engine, ref string) (*store.Image, error) {
	img, err := imageFor(r, ref, e.Image, allImages(e))
	return img, ofImage.shown(identityOf(r), ref, tenantOf(img), err)
}

// allImages returns the list of candidates for imageFor.
func allImages(e Engine) func() []*store.Image {
	return func() []*store.Image {
		all, _ := e.ImageList()
		return all
	}
}

func tenantOf(img *store.Image) string {
	if img == nil {
		return ""
	}
	return build.ImageTenant(img)
}

func (s *imageRoutes) find(r *http.Request) (string, error) {
	return pinImage(r, s.engine.Image, allImages(s.engine))
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
	return build.ImageTenant(img), nil
}
