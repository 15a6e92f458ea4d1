package docker

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	types "github.com/moby/moby/api/types/image"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// imageRoutes has the routes below /images/.
type imageRoutes struct{ *server }

// imageList answers GET /images/json?all=&filters=&shared-size=. With shared-size, sizes are
// allocated disk space. Only all includes build tools, as Docker's all includes intermediate
// images.
func (s imageRoutes) imageList(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "dangling", "label", "label!", "reference", "before", "since", "until")
	if err != nil {
		return err
	}
	all, old := boolOf(r, "all"), versionOf(r) < 43
	images, generation := s.engine.ImageList()
	shown := func() []*store.Image {
		if all {
			return images
		}
		return slices.DeleteFunc(slices.Clone(images), isTools)
	}
	share := boolOf(r, "shared-size")
	if len(f) == 0 && !share {
		body, err := s.images[index(old)][index(all)].At(generation, shown)
		if err != nil {
			return err
		}
		body.ServeHTTP(w, r)
		return nil
	}
	keep, err := s.imageFilter(f)
	if err != nil {
		return err
	}
	out := []imageSummary{}
	sizes := s.engine.ImageSizes()
	for _, img := range shown() {
		labels := labelsOf(img)
		found := keep(img, labels)
		if found == nil {
			continue
		}
		e := summaryOf(found, labels, old)
		if share {
			size := sizes.Image(img.Digest)
			e.Size, e.SharedSize = size.Bytes, size.Bytes-size.UniqueBytes
		}
		out = append(out, e)
	}
	return reply(w, http.StatusOK, out)
}

// imageFilter returns the test for the filters. The test returns nil for a mismatch, and
// otherwise the image with the matching names.
func (s imageRoutes) imageFilter(f filters) (func(*store.Image, map[string]string) *store.Image, error) {
	t := imageTest{filters: f}
	var err error
	if t.dangling, t.asked, err = f.flag("dangling"); err != nil {
		return nil, err
	}
	if t.until, err = f.moment("until", time.Now()); err != nil {
		return nil, err
	}
	for key, at := range map[string]*time.Time{"before": &t.before, "since": &t.since} {
		for _, ref := range f[key] {
			img, err := s.image(ref)
			if err != nil {
				return nil, err
			}
			*at = img.Created
		}
	}
	for _, pattern := range f["reference"] {
		if _, err := matches(pattern, "x:y"); err != nil {
			return nil, err
		}
	}
	return t.matching, nil
}

// imageTest is a checked filter of images.
type imageTest struct {
	filters
	dangling, asked      bool // asked: the filter dangling is given
	until, before, since time.Time
}

// matching returns the image with the names that pass, or nil.
func (t *imageTest) matching(img *store.Image, labels map[string]string) *store.Image {
	if t.excludes(img) || !t.labels(labels) {
		return nil
	}
	patterns := t.filters["reference"]
	if len(patterns) == 0 {
		return img
	}
	other := func(name string) bool {
		return !slices.ContainsFunc(patterns, func(p string) bool { ok, _ := matches(p, name); return ok })
	}
	found := *img
	found.Names = slices.DeleteFunc(slices.Clone(img.Names), other)
	found.Remotes = slices.DeleteFunc(slices.Clone(img.Remotes), other)
	if len(found.Names)+len(found.Remotes) == 0 {
		return nil
	}
	return &found
}

// excludes reports whether the names or the time of the image are not wanted.
func (t *imageTest) excludes(img *store.Image) bool {
	return t.asked && t.dangling != (len(img.Names) == 0) ||
		!t.until.IsZero() && img.Created.After(t.until) ||
		!t.before.IsZero() && !img.Created.Before(t.before) ||
		!t.since.IsZero() && !img.Created.After(t.since)
}

// platformed returns the image with the given name or id, if the image fits the requested
// platforms.
func (s imageRoutes) platformed(r *http.Request, name, parameter string) (*store.Image, error) {
	img, err := s.image(name)
	if err != nil {
		return nil, err
	}
	for _, p := range r.URL.Query()[parameter] {
		if oci.CheckPlatform(p) != nil {
			return nil, notFound("image %s exists for linux/%s, not for the platform %s", name, runtime.GOARCH, p)
		}
	}
	return img, nil
}

// imageInspect answers GET /images/NAME/json?platform=.
func (s imageRoutes) imageInspect(w http.ResponseWriter, r *http.Request) error {
	img, err := s.platformed(r, r.PathValue("name"), "platform")
	if err != nil {
		return err
	}
	cfg, err := image.ConfigOf(img)
	if err != nil {
		return err
	}
	layers, err := s.diffIDs(r.Context(), img)
	if err != nil {
		return err
	}
	created := img.Created.UTC().Format(time.RFC3339Nano)
	return reply(w, http.StatusOK, map[string]any{
		"Id": img.Digest, "RepoTags": list(img.Names), "RepoDigests": list(img.Remotes), "Parent": "", "Comment": "", "Created": created, "DockerVersion": "", "Author": "",
		"Config": configOf(cfg, labelsOf(img)), "Architecture": runtime.GOARCH, "Os": "linux", "Size": img.Size, "VirtualSize": img.Size,
		"GraphDriver": graphDriver,
		"RootFS":      map[string]any{"Type": "layers", "Layers": layers},
		"Metadata":    map[string]any{"LastTagTime": created},
	})
}

// diffIDs returns the diff ids of an image's layers. For an image built by FRE, the engine has
// to pack archives to compute the digests, so diffIDs caches the result while the image exists.
func (s imageRoutes) diffIDs(ctx context.Context, img *store.Image) ([]store.Digest, error) {
	known, _ := s.layers.Load(img.Digest)
	if ids, ok := known.([]store.Digest); ok {
		return ids, nil
	}
	ids, err := s.engine.DiffIDs(ctx, img)
	if err == nil {
		s.layers.Range(func(of, _ any) bool { // evict removed images
			if d, ok := of.(store.Digest); ok {
				if _, err := s.engine.Image(string(d)); err != nil {
					s.layers.Delete(of)
				}
			}
			return true
		})
		s.layers.Store(img.Digest, ids)
	}
	return ids, err
}

// imageHistory answers GET /images/NAME/history?platform=: the steps that made an image, last
// step first.
func (s imageRoutes) imageHistory(w http.ResponseWriter, r *http.Request) error {
	img, err := s.platformed(r, r.PathValue("name"), "platform")
	if err != nil {
		return err
	}
	steps, err := s.engine.History(string(img.Digest))
	if err != nil {
		return err
	}
	out := []types.HistoryResponseItem{}
	for _, step := range slices.Backward(steps) {
		item := types.HistoryResponseItem{ID: "<missing>", Created: step.Created.Unix(), CreatedBy: step.CreatedBy, Size: step.Size, Comment: step.Comment}
		if len(out) == 0 {
			item.ID, item.Tags = string(img.Digest), img.Names
		}
		out = append(out, item)
	}
	return reply(w, http.StatusOK, out)
}

// imageTag answers POST /images/NAME/tag?repo=&tag=.
func (s imageRoutes) imageTag(w http.ResponseWriter, r *http.Request) error {
	as, err := reference(r.URL.Query().Get("repo"), r.URL.Query().Get("tag"))
	if err != nil {
		return err
	}
	img, err := s.image(r.PathValue("name"))
	if err != nil {
		return err
	}
	if _, err := s.engine.TagImage(r.Context(), string(img.Digest), as.String()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

func removedImages(gone build.Removed) []types.DeleteResponse {
	out := []types.DeleteResponse{}
	for _, name := range gone.Untagged {
		out = append(out, types.DeleteResponse{Untagged: name})
	}
	if gone.Deleted {
		out = append(out, types.DeleteResponse{Deleted: string(gone.Image.Digest)})
	}
	return out
}

// imageRemove answers DELETE /images/NAME?force=&noprune=&platforms=. A name without a version
// means version latest, never another version.
func (s imageRoutes) imageRemove(w http.ResponseWriter, r *http.Request) error {
	name := oci.Familiar(r.PathValue("name"))
	img, err := s.platformed(r, name, "platforms")
	if err != nil {
		return err
	}
	ref := name
	if p, err := store.ParseReference(name); err == nil && p.Version == "" && p.Digest == "" && !strings.HasPrefix(string(img.Digest), "sha256:"+strings.TrimPrefix(name, "sha256:")) {
		ref += ":latest"
	}
	gone, err := s.engine.RemoveImage(r.Context(), ref, build.RemoveOptions{Force: boolOf(r, "force")})
	if err != nil {
		return noImage(name, err)
	}
	return reply(w, http.StatusOK, removedImages(gone))
}

// imagePrune answers POST /images/prune?filters=: removes images without a name, or with
// dangling=false all unused images, except base environments.
func (s imageRoutes) imagePrune(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "dangling", "label", "label!", "until")
	if err != nil {
		return err
	}
	dangling, given, err := f.flag("dangling")
	if err != nil {
		return err
	}
	delete(f, "dangling")
	keep, err := s.imageFilter(f)
	if err != nil {
		return err
	}
	var answer types.PruneReport
	report, err := s.engine.GC(r.Context(), build.GCOptions{Policy: &build.GCPolicy{
		Nameless: true, All: given && !dangling,
		Only: func(img *store.Image) bool {
			return keep(img, labelsOf(img)) != nil
		},
	}})
	if err != nil {
		return err
	}
	for _, x := range report.Images {
		answer.ImagesDeleted = append(answer.ImagesDeleted, removedImages(build.Removed{Image: x.Image, Untagged: slices.Concat(x.Image.Names, x.Image.Remotes), Deleted: true})...)
	}
	answer.SpaceReclaimed = uint64(report.Bytes) // includes objects without an image
	return reply(w, http.StatusOK, answer)
}
