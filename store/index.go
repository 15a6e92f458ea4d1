package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const indexName = "index.json"

// index is what only the database would know otherwise: with it and the images'
// manifests a lost database is made anew. Without the tenants' ids one tenant
// could get the id, and so the files, of another. Parts are left out: they are
// found out again by building.
type index struct {
	Tenants   []Tenant    `json:"tenants"`
	Functions []*Function `json:"functions"`
	Images    []indexed   `json:"images"`
}

type indexed struct {
	Digest  Digest    `json:"digest"`
	Created time.Time `json:"created"`
	Names   []string  `json:"names,omitempty"`  // "name:version"
	Tagged  bool      `json:"tagged,omitempty"` // its manifest's name means it: instead of Names before an image could have several
}

func (s *Store) writeIndex(n *snapshot) error {
	x := index{
		Tenants:   slices.SortedFunc(maps.Values(n.tenants), func(a, b Tenant) int { return cmp.Compare(a.ID, b.ID) }),
		Functions: n.functionList,
	}
	for _, img := range n.images {
		x.Images = append(x.Images, indexed{Digest: img.Digest, Created: img.Created, Names: img.Names})
	}
	b, err := json.Marshal(x)
	if err != nil {
		return err
	}
	tmp := int(s.tmp.Fd())
	f, err := openat(tmp, indexName, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		_ = unix.Unlinkat(tmp, indexName, 0)
		return err
	}
	if err := unix.Renameat(tmp, indexName, int(s.root.Fd()), indexName); err != nil {
		return err
	}
	return s.root.Sync()
}

// rebuild fills an empty database from index.json and the images on disk.
func (s *Store) rebuild(t *tx) error {
	var x index
	b, err := os.ReadFile(filepath.Join(s.dir, indexName))
	if err == nil {
		err = json.Unmarshal(b, &x)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Error("cannot read index: functions and tenants are lost", "error", err)
		x = index{}
	}
	known := make(map[Digest]indexed)
	for _, i := range x.Images {
		known[i.Digest] = i
	}
	names, err := readNames(s.images)
	if err != nil {
		return err
	}
	newest := make(map[tag]*Image) // for images the index does not know
	for _, name := range names {
		img, manifest, err := s.readImage(name)
		var own sized
		if err == nil {
			own.bytes, own.inodes, err = ownSize(filepath.Join(s.dir, "images", name))
		}
		if err != nil {
			s.log.Error("image cannot be rebuilt: dropped", "image", name, "error", err)
			continue
		}
		k := splitName(img.Built)
		i, ok := known[img.Digest]
		if ok {
			img.Created = i.Created
		}
		if i.Tagged {
			i.Names = append(i.Names, img.Built)
		}
		if err := t.putImage(img, manifest, own); err != nil {
			return err
		}
		for _, name := range i.Names {
			if err := t.putTag(splitName(name), img.Digest); err != nil {
				return err
			}
		}
		if old := newest[k]; !ok && k != (tag{}) && (old == nil || old.Created.Before(img.Created)) {
			newest[k] = img
		}
	}
	for k, img := range newest {
		if _, taken := t.next.tags[k]; taken {
			continue
		}
		if err := t.putTag(k, img.Digest); err != nil {
			return err
		}
	}
	for _, n := range x.Tenants {
		if _, err := t.putTenant(n); err != nil {
			return err
		}
	}
	for _, f := range x.Functions {
		if t.next.byDigest[f.Image] == nil {
			s.log.Error("function has lost its image: dropped", "function", f.Name, "image", f.Image)
			continue
		}
		if err := t.putFunction(f); err != nil {
			return err
		}
	}
	return nil
}

// readImage reads images/<name> back: its manifest, and the totals by walking,
// which nothing else ever does.
func (s *Store) readImage(name string) (*Image, []byte, error) {
	dir := filepath.Join(s.dir, "images", name)
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, nil, err
	}
	img := &Image{Digest: sumDigest(b)}
	if img.Digest.hex() != name {
		return nil, nil, fmt.Errorf("manifest does not match digest")
	}
	if err := decodeStrict(b, &img.Manifest); err != nil {
		return nil, nil, err
	}
	img.Built = tag{img.Name, img.Version}.String()
	img.setNames(nil) // until a tag gives them back
	st, err := os.Lstat(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, nil, err
	}
	img.Created = st.ModTime().UTC()
	err = filepath.WalkDir(filepath.Join(dir, "rootfs"), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		st, err := e.Info()
		if err == nil {
			img.Files++
			img.Size += st.Size()
		}
		return err
	})
	return img, b, err
}
