package docker

import (
	"net/http"
	"slices"
	"time"

	"github.com/fre-engine/fre/image"
)

// volumeUsage is a volume with what is in it.
type volumeUsage struct {
	volume
	UsageData struct {
		Size     int64
		RefCount int
	}
}

// diskUsage answers GET /system/df?type=: blocks of the disk, what images share
// once. It asks each running container and tenant by a system call or two, and
// nothing else.
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
	now := time.Now()
	users := map[string]int{}
	all := []containerSummary{}
	for _, c := range s.containers(true) {
		users[string(c.digest())]++
		if asked("container") {
			item := s.summary(c, now)
			item.SizeRw, item.SizeRootFs = s.sizes(c)
			all = append(all, item)
		}
	}
	images := []imageSummary{}
	for _, img := range used.Images {
		if !asked("image") || isTools(img.Image) {
			continue
		}
		e := summaryOf(img.Image, labelsOf(img.Image), versionOf(r) < 43)
		e.Size, e.SharedSize, e.Containers = img.Bytes, img.Bytes-img.UniqueBytes, users[string(img.Digest)]
		if e.VirtualSize > 0 {
			e.VirtualSize = e.Size
		}
		if img.InUse && e.Containers == 0 {
			e.Containers = 1 // a function without an instance now
		}
		images = append(images, e)
	}
	volumes := []volumeUsage{}
	for _, t := range used.Tenants {
		if asked("volume") && t.Name == image.DefaultTenant {
			v := volumeUsage{volume: s.work()}
			v.UsageData.Size, v.UsageData.RefCount = t.Bytes, 1
			volumes = append(volumes, v)
		}
	}
	answer := map[string]any{"LayersSize": used.ImageBytes, "Images": images, "Containers": all, "Volumes": volumes, "BuildCache": []any{}, "BuilderSize": 0}
	return reply(w, http.StatusOK, answer)
}
