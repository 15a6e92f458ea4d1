package docker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
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
	users := map[store.Digest]int{}
	layers := used.ImageBytes
	shown := slices.DeleteFunc(used.Images, func(img engine.ImageUsage) bool {
		hide := isTools(img.Image)
		if hide {
			layers -= img.HeldBytes
		}
		return hide
	})
	body := make([]byte, 0, 1024+512*len(shown))
	body = appendInt(append(body, `{"BuildCache":[],"BuilderSize":0`...), "LayersSize", layers)

	body = append(body, `,"Containers":`...)
	body, err = s.boxes[index(true)].append(body, s.engine.Sandboxes(true), 0, func(c container) bool {
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
	if body, err = s.appendImageUsage(body, shown, users, versionOf(r) < 43); err != nil {
		return err
	}

	volumes := []volumeUsage{}
	for _, t := range used.Tenants {
		if asked("volume") && t.Name == image.DefaultTenant {
			v := volumeUsage{volume: work()}
			v.UsageData.Size, v.UsageData.RefCount = t.Bytes, 1
			volumes = append(volumes, v)
		}
	}
	encoded, err := json.Marshal(volumes)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	body = append(append(append(body, `,"Volumes":`...), encoded...), '}')
	return replyJSON(w, http.StatusOK, body)
}

// appendImageUsage encodes images, which have so many users, with their sizes. Clients
// take for reclaimable all layers but what the images with containers do not share
// (docker/cli, formatter/disk_usage.go): what images in use share is told as one's
// own, so that the sum is what stays.
func (s *server) appendImageUsage(buf []byte, used []engine.ImageUsage, users map[store.Digest]int, old bool) ([]byte, error) {
	images := make([]*store.Image, len(used))
	for i, img := range used {
		images[i] = img.Image
	}
	buf = append(buf, '[')
	err := s.images[index(old)][index(false)].Rows(images, func(i int, row []byte) error {
		if i > 0 {
			buf = append(buf, ',')
		}
		img, n, own := used[i], 0, used[i].UniqueBytes
		if img.InUse {
			n, own = max(users[images[i].Digest], 1), img.HeldBytes // 1: a function without an instance now
		}
		moment := imageMoment{Containers: n, SharedSize: img.Bytes - own, Size: img.Bytes}
		if old {
			moment.VirtualSize = img.Bytes
		}
		buf = moment.splice(buf, row)
		return nil
	})
	return append(buf, ']'), err
}

// appendInt appends a member that is not the first.
func appendInt(buf []byte, name string, n int64) []byte {
	buf = append(append(append(buf, `,"`...), name...), `":`...)
	return strconv.AppendInt(buf, n, 10)
}
