package docker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	mobybuild "github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/volume"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/server/listing"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// downloads is the id of the only entry of the build cache.
const downloads = "downloads"

// buildPrune answers POST /build/prune?all=&filters=: with all, and without a filter or a size
// to keep, the handler removes all downloads of builds.
func (s *server) buildPrune(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "until", "id", "parent", "type", "description", "inuse", "shared", "private")
	if err != nil {
		return err
	}
	answer := mobybuild.CachePruneReport{CachesDeleted: []string{}}
	keeps := slices.ContainsFunc([]string{"keep-storage", "reserved-space", "max-used-space", "min-free-space"}, func(p string) bool {
		v := r.URL.Query().Get(p)
		return v != "" && v != "0"
	})
	if boolOf(r, "all") && len(f) == 0 && !keeps {
		report, err := s.engine.GC(r.Context(), build.GCOptions{Policy: &build.GCPolicy{}, Cache: true})
		if err != nil {
			return err
		}
		if answer.SpaceReclaimed = uint64(report.CacheBytes); report.CacheBytes > 0 {
			answer.CachesDeleted = append(answer.CachesDeleted, downloads)
		}
	}
	return reply(w, http.StatusOK, answer)
}

// diskUsage answers GET /system/df?type= with allocated disk space; files shared by images count
// once. The cost is one or two system calls per running container and tenant.
func (s *server) diskUsage(w http.ResponseWriter, r *http.Request) error {
	kinds := r.URL.Query()["type"]
	for _, kind := range kinds {
		if !slices.Contains([]string{"container", "image", "volume", "build-cache"}, kind) {
			return badRequest("unknown object type: %s: use container, image, volume or build-cache", kind)
		}
	}
	asked := func(kind string) bool { return len(kinds) == 0 || slices.Contains(kinds, kind) }
	used, err := s.engine.DiskUsage()
	if err != nil {
		return err
	}
	users := map[store.Digest]int{}
	layers := used.ImageBytes
	shown := slices.DeleteFunc(used.Images, func(img engine.ImageUsage) bool {
		hide := isTools(img.Image)
		if hide {
			layers -= img.HeldBytes
		}
		return hide
	})
	body, err := appendJSON(make([]byte, 0, 1024+512*len(shown)), `{"BuildCache":`, cacheRecords(used, asked("build-cache")))
	if err != nil {
		return err
	}
	body = appendInt(appendInt(body, "BuilderSize", used.Cache.Bytes), "LayersSize", layers)

	body = append(body, `,"Containers":`...)
	body, err = s.boxes[index(true)].append(body, s.engine.Sandboxes(true), 0, func(c shownContainer) bool {
		users[c.Digest]++
		return asked("container")
	}, s.sizes)
	if err != nil {
		return err
	}

	body = append(body, `,"Images":`...)
	if !asked("image") {
		shown = nil
	}
	if body, err = s.images.appendUsage(body, shown, users, versionOf(r) < 43); err != nil {
		return err
	}
	if body, err = appendJSON(body, `,"Volumes":`, volumeUsage(used, asked("volume"))); err != nil {
		return err
	}
	listing.Send(w, http.StatusOK, append(body, '}'))
	return nil
}

// cacheRecords returns the build cache, as one record at most.
func cacheRecords(used *engine.DiskUsage, asked bool) []mobybuild.CacheRecord {
	if !asked || used.Cache.Bytes == 0 {
		return []mobybuild.CacheRecord{}
	}
	return []mobybuild.CacheRecord{{ID: downloads, Type: "regular", Description: "packages and indexes downloaded by builds", Size: used.Cache.Bytes, CreatedAt: used.Cache.AsOf}}
}

// volumeUsage returns the volume of the default tenant with its size, if the tenant has one.
func volumeUsage(used *engine.DiskUsage, asked bool) []volume.Volume {
	volumes := []volume.Volume{}
	for _, t := range used.Tenants {
		if asked && t.Name == template.DefaultTenant {
			v := work()
			v.UsageData = &volume.UsageData{Size: t.Bytes, RefCount: 1}
			volumes = append(volumes, v)
		}
	}
	return volumes
}

// appendJSON appends name and the JSON of v.
func appendJSON(buf []byte, name string, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return append(append(buf, name...), text...), nil
}
