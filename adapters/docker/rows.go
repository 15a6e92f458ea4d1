package docker

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	types "github.com/moby/moby/api/types/container"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/server/listing"
	"github.com/fre-engine/fre/store"
)

// containerRows caches the encoded rows of a list of containers. A row is encoded once per
// change of the container; containerMoment is added for each answer.
type containerRows struct{ cache listing.Cache[live.Sandbox] }

func newContainerRows() *containerRows {
	return &containerRows{listing.Cache[live.Sandbox]{Row: func(buf []byte, b *live.Sandbox) ([]byte, error) {
		row, err := json.Marshal(summaryOfContainer(containerOf(b)))
		return append(buf, row...), err
	}}}
}

// append appends the containers selected by keep, at most limit unless limit is 0. The rows have
// sizes unless sizes is nil.
func (l *containerRows) append(buf []byte, boxes []*live.Sandbox, limit int, keep func(shownContainer) bool, sizes func(shownContainer) (written, whole int64)) ([]byte, error) {
	now, n := time.Now(), 0
	buf = append(buf, '[')
	err := l.cache.Rows(boxes, func(i int, row []byte) error {
		c := containerOf(boxes[i])
		if limit > 0 && n == limit || !keep(c) {
			return nil
		}
		if n++; n > 1 {
			buf = append(buf, ',')
		}
		moment := containerMoment{Status: c.statusText(now)}
		if sizes != nil {
			moment.SizeRw, moment.SizeRootFs = sizes(c)
		}
		buf = moment.splice(buf, row)
		return nil
	})
	return append(buf, ']'), err
}

type containerSummary struct {
	ID         string `json:"Id"`
	Names      []string
	Image      string
	ImageID    string
	Command    string
	Created    int64
	Ports      []types.PortSummary
	Labels     map[string]string
	State      string
	HostConfig struct {
		NetworkMode string
		Annotations map[string]string `json:",omitempty"`
	}
	NetworkSettings struct{ Networks map[string]endpoint }
	Mounts          []types.MountPoint
	containerMoment
}

// containerMoment holds the members that change while the container stays the same.
type containerMoment struct {
	Status     string `json:",omitempty"` // "" in a row of containerRows
	SizeRw     int64  `json:",omitempty"`
	SizeRootFs int64  `json:",omitempty"`
}

// splice appends row with m at the end. Status needs no JSON escapes.
func (m containerMoment) splice(buf, row []byte) []byte {
	buf = append(append(buf, row[:len(row)-1]...), `,"Status":"`...)
	buf = append(append(buf, m.Status...), '"')
	if m.SizeRw != 0 {
		buf = appendInt(buf, "SizeRw", m.SizeRw)
	}
	if m.SizeRootFs != 0 {
		buf = appendInt(buf, "SizeRootFs", m.SizeRootFs)
	}
	return append(buf, '}')
}

func summaryOfContainer(c shownContainer) containerSummary {
	out := containerSummary{
		ID: c.ID, Names: []string{"/" + c.name}, Image: c.Image, ImageID: string(c.Digest), Command: c.Command, Created: c.made.Unix(),
		Ports: []types.PortSummary{}, Labels: c.labels(), State: c.state(), Mounts: c.mounts(),
	}
	out.HostConfig.NetworkMode = c.network()
	if c.record != nil {
		out.HostConfig.Annotations = c.record.Config.Annotations
	}
	out.NetworkSettings.Networks = map[string]endpoint{c.network(): {}}
	return out
}

// imageLists caches the encoded list of all images, because clients poll the list. The indices
// are: format of before API version 1.43, and including build tools.
type imageLists [2][2]listing.Cache[store.Image]

func newImageLists() *imageLists {
	l := &imageLists{}
	for old := range l {
		for all := range l[old] {
			l[old][all].Row = func(buf []byte, img *store.Image) ([]byte, error) {
				row, err := json.Marshal(summaryOf(img, labelsOf(img), old == 1))
				return append(buf, row...), err
			}
		}
	}
	return l
}

// appendUsage appends the images with their sizes. users holds the number of containers per
// image. The docker client computes the reclaimable space as LayersSize minus the unshared bytes
// of images with containers (docker/cli, formatter/disk_usage.go). Bytes shared by images in use
// are therefore reported as unshared bytes of one of the images, and the sum is exact.
func (l *imageLists) appendUsage(buf []byte, used []engine.ImageUsage, users map[store.Digest]int, old bool) ([]byte, error) {
	images := make([]*store.Image, len(used))
	for i, img := range used {
		images[i] = img.Image
	}
	buf = append(buf, '[')
	err := l[index(old)][index(false)].Rows(images, func(i int, row []byte) error {
		if i > 0 {
			buf = append(buf, ',')
		}
		img, n, own := used[i], 0, used[i].UniqueBytes
		if img.InUse {
			n, own = max(users[images[i].Digest], 1), img.HeldBytes // 1: a function without instances
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

// imageSummary is one entry of the image list.
type imageSummary struct {
	Created     int64
	ID          string `json:"Id"`
	Labels      map[string]string
	ParentID    string `json:"ParentId"`
	RepoDigests []string
	RepoTags    []string
	imageMoment
}

// imageMoment holds the members that change while the image stays the same.
type imageMoment struct {
	Containers  int // -1: not counted
	SharedSize  int64
	Size        int64
	VirtualSize int64 `json:",omitempty"` // until API version 1.43
}

// splice appends row with its last members replaced by m.
func (m imageMoment) splice(buf, row []byte) []byte {
	buf = append(buf, row[:bytes.LastIndex(row, []byte(`,"Containers":`))]...) // only numbers follow
	buf = appendInt(buf, "Containers", int64(m.Containers))
	buf = appendInt(buf, "SharedSize", m.SharedSize)
	buf = appendInt(buf, "Size", m.Size)
	if m.VirtualSize != 0 {
		buf = appendInt(buf, "VirtualSize", m.VirtualSize)
	}
	return append(buf, '}')
}

func summaryOf(img *store.Image, labels map[string]string, old bool) imageSummary {
	e := imageSummary{
		Created: img.Created.Unix(), ID: string(img.Digest), Labels: labels, RepoTags: list(img.Names), RepoDigests: list(img.Remotes),
		imageMoment: imageMoment{Containers: -1, SharedSize: -1, Size: img.Size},
	}
	if old {
		e.VirtualSize = img.Size
		if len(e.RepoTags) == 0 && len(e.RepoDigests) == 0 {
			e.RepoTags, e.RepoDigests = []string{"<none>:<none>"}, []string{"<none>@<none>"}
		}
	}
	return e
}

// appendInt appends a member that follows another one.
func appendInt(buf []byte, name string, n int64) []byte {
	buf = append(append(append(buf, `,"`...), name...), `":`...)
	return strconv.AppendInt(buf, n, 10)
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// list replaces nil by an empty list, because clients take null for an older engine.
func list(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

// labelsOf returns an image's labels; a foreign configuration has none.
func labelsOf(img *store.Image) map[string]string { return labelsIn(img.Config) }

func labelsIn(config []byte) map[string]string {
	var cfg struct { // subset of image.Config, for speed: lists decode every configuration
		Labels    map[string]string
		Container struct{ Labels map[string]string }
	}
	if !bytes.Contains(config, []byte(`"labels"`)) || json.Unmarshal(config, &cfg) != nil {
		return map[string]string{}
	}
	if cfg.Labels == nil {
		cfg.Labels = cfg.Container.Labels
	}
	if cfg.Labels == nil {
		return map[string]string{}
	}
	return cfg.Labels
}

// isTools reports whether img is an image of build tools. The search for the kind avoids
// decoding most configurations, because every change runs isTools over the whole list.
func isTools(img *store.Image) bool {
	return bytes.Contains(img.Config, []byte(image.KindTools)) && labelsOf(img)[image.LabelKind] == image.KindTools
}
