package server

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// images answers GET /v1/images?since=.
func (s *server) images(w http.ResponseWriter, r *http.Request) error {
	images, generation := s.engine.ImageList()
	if id := identityOf(r); !id.All() {
		if r.URL.Query().Has("since") {
			return &api.Error{Code: api.CodeForbidden, Message: "changes of images are for tokens of all tenants", Next: "read the list without since"}
		}
		return reply(w, http.StatusOK, list(only(images, id, engine.ImageTenant), imageOf))
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
func (s *server) imageChanges(images []*store.Image, generation, since uint64) api.ImageChanges {
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
func (s *server) imageHistory(w http.ResponseWriter, r *http.Request) error {
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
func (s *server) imageSBOM(w http.ResponseWriter, r *http.Request) error {
	doc, err := s.engine.SBOM(r.PathValue("ref"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/vnd.cyclonedx+json")
	w.Header().Set("Content-Length", strconv.Itoa(len(doc)))
	_, _ = w.Write(doc) // the client may have disconnected
	return nil
}

// slim answers POST /v1/functions/{name}/slim.
func (s *server) slim(w http.ResponseWriter, r *http.Request) error {
	var req api.SlimRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	done, err := s.engine.Slim(r.Context(), r.PathValue("name"), image.SlimOptions{Keep: req.Keep, DryRun: req.DryRun})
	if err != nil {
		return err
	}
	out := api.Slimmed{
		Before: api.FileTotals(done.Before), After: api.FileTotals(done.After),
		Gone: list(done.Gone, func(e store.Entry) api.GoneFile { return api.GoneFile{Path: e.Path, Size: e.Size} }),
	}
	if done.Image != nil {
		shown := imageOf(done.Image)
		out.Image = &shown
	}
	return reply(w, http.StatusOK, out)
}
