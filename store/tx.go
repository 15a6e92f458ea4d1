package store

import (
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
)

// ownImages returns next.images for changes in place.
func (t *tx) ownImages() *[]*Image {
	if !t.own {
		t.own = true
		t.next.images = append(make([]*Image, 0, len(t.next.images)+1), t.next.images...)
	}
	return &t.next.images
}

// replaceImage replaces an image's record in the lists.
func (t *tx) replaceImage(old, img *Image) {
	t.next.byDigest[img.Digest] = img
	list := *t.ownImages()
	list[slices.Index(list, old)] = img
	t.touched = append(t.touched, img.Digest)
}

func (t *tx) noteImage(a ChangeAction, d Digest, name string) {
	img := t.next.byDigest[d]
	if img == nil { // removeImage has dropped it from next
		img = t.s.snap.Load().byDigest[d]
	}
	c := Change{Kind: ChangeImage, Action: a, ID: string(d), Name: name}
	if img != nil {
		c.Config = img.Config
	}
	t.changes = append(t.changes, c)
}

func (t *tx) putImage(img *Image, manifest []byte, own sized) error {
	t.next.serial++
	_, err := t.sql.Exec(`INSERT INTO images (digest, manifest, created, size, files, serial) VALUES (?, ?, ?, ?, ?, ?)`,
		img.Digest, string(manifest), img.Created.UnixNano(), img.Size, img.Files, t.next.serial)
	if err != nil {
		return err
	}
	if img.Foreign {
		if _, err := t.sql.Exec(`INSERT INTO foreign_images VALUES (?)`, img.Digest); err != nil {
			return err
		}
	}
	for i, p := range img.Parts {
		if _, err := t.sql.Exec(`INSERT INTO image_parts VALUES (?, ?, ?)`, img.Digest, i, p.Tree); err != nil {
			return err
		}
	}
	z, err := t.lockSizes()
	if err != nil {
		return err
	}
	if err := z.addImage(img.Digest, &img.Manifest, own); err != nil {
		return err
	}
	t.next.byDigest[img.Digest] = img
	list := t.ownImages()
	*list = slices.Insert(*list, 0, img)
	t.touched = append(t.touched, img.Digest)
	t.noteImage(ActionCreate, img.Digest, "")
	return nil
}

// trustImage makes a foreign image a trusted one.
func (t *tx) trustImage(d Digest) error {
	old := t.next.byDigest[d]
	if old == nil || !old.Foreign {
		return nil
	}
	img := *old
	img.Foreign = false
	t.replaceImage(old, &img)
	_, err := t.sql.Exec(`DELETE FROM foreign_images WHERE image = ?`, d)
	return err
}

// putTag moves the name to the image d. The image that had the name stays.
func (t *tx) putTag(k tag, d Digest) error {
	if _, err := t.sql.Exec(`INSERT INTO tags VALUES (?, ?, ?)
		ON CONFLICT (name, version) DO UPDATE SET image = excluded.image`, k.name, k.version, d); err != nil {
		return err
	}
	if old := t.next.tags[k]; old != "" && old != d {
		t.noteImage(ActionUntag, old, k.String())
	}
	t.unname(k)
	t.next.tags[k] = d
	if old := t.next.byDigest[d]; old != nil {
		img := *old
		img.setNames(append(slices.Clone(old.Names), k.String()))
		t.replaceImage(old, &img)
	}
	t.noteImage(ActionTag, d, k.String())
	return nil
}

func (t *tx) removeTag(k tag) error {
	if _, err := t.sql.Exec(`DELETE FROM tags WHERE name = ? AND version = ?`, k.name, k.version); err != nil {
		return err
	}
	if d := t.next.tags[k]; d != "" {
		t.noteImage(ActionUntag, d, k.String())
	}
	t.unname(k)
	return nil
}

// unname takes a name off its image.
func (t *tx) unname(k tag) {
	d := t.next.tags[k]
	delete(t.next.tags, k)
	if old := t.next.byDigest[d]; old != nil {
		img := *old
		img.setNames(slices.DeleteFunc(slices.Clone(old.Names), func(name string) bool { return name == k.String() }))
		t.replaceImage(old, &img)
	}
}

// putRemote makes remote, a registry's name for an image, mean the image d.
func (t *tx) putRemote(remote string, d Digest) error {
	name, digest, _ := strings.Cut(remote, "@")
	if _, err := t.sql.Exec(`INSERT INTO remotes VALUES (?, ?, ?)
		ON CONFLICT (name, digest) DO UPDATE SET image = excluded.image`, name, digest, d); err != nil {
		return err
	}
	t.forgetRemote(remote)
	t.next.remotes[remote] = d
	if old := t.next.byDigest[d]; old != nil {
		img := *old
		img.Remotes = append(slices.Clone(old.Remotes), remote)
		slices.Sort(img.Remotes)
		t.replaceImage(old, &img)
	}
	t.noteImage(ActionTag, d, remote)
	return nil
}

func (t *tx) removeRemote(remote string) error {
	name, digest, _ := strings.Cut(remote, "@")
	if _, err := t.sql.Exec(`DELETE FROM remotes WHERE name = ? AND digest = ?`, name, digest); err != nil {
		return err
	}
	t.forgetRemote(remote)
	return nil
}

// forgetRemote takes remote off its image.
func (t *tx) forgetRemote(remote string) {
	d := t.next.remotes[remote]
	if d == "" {
		return
	}
	delete(t.next.remotes, remote)
	if old := t.next.byDigest[d]; old != nil {
		img := *old
		img.Remotes = slices.DeleteFunc(slices.Clone(old.Remotes), func(r string) bool { return r == remote })
		t.replaceImage(old, &img)
	}
	t.noteImage(ActionUntag, d, remote)
}

func (t *tx) removeImage(d Digest) error {
	if _, err := t.sql.Exec(`DELETE FROM images WHERE digest = ?`, d); err != nil {
		return err
	}
	z, err := t.lockSizes()
	if err != nil {
		return err
	}
	z.leave(d) // the row of the image's own size is gone with the image's row
	if old := t.next.byDigest[d]; old != nil {
		for _, name := range old.Names {
			delete(t.next.tags, splitName(name))
			t.noteImage(ActionUntag, d, name)
		}
		for _, remote := range old.Remotes {
			delete(t.next.remotes, remote)
			t.noteImage(ActionUntag, d, remote)
		}
		list := t.ownImages()
		i := slices.Index(*list, old)
		*list = slices.Delete(*list, i, i+1)
	}
	delete(t.next.byDigest, d)
	t.touched = append(t.touched, d)
	t.noteImage(ActionDelete, d, "")
	return nil
}

// dropImage removes an image without a directory, and the functions that run the image.
// Functions that keep the image only for a rollback stay, without the rollback.
func (t *tx) dropImage(d Digest) error {
	if _, err := t.sql.Exec(`DELETE FROM functions WHERE image = ?`, d); err != nil {
		return err
	}
	for _, f := range t.next.functionList {
		switch {
		case f.Image == d:
			t.showFunction(f.Name, nil)
		case f.keeps(d):
			if err := t.putFunction(f.without(d)); err != nil {
				return err
			}
		}
	}
	return t.removeImage(d)
}

func (t *tx) putPart(key string, p Part) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = t.sql.Exec(`INSERT INTO parts VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET part = excluded.part`, key, string(b))
	t.next.parts[key] = p
	return err
}

func (t *tx) removePart(key string) error {
	_, err := t.sql.Exec(`DELETE FROM parts WHERE key = ?`, key)
	delete(t.next.parts, key)
	return err
}

func (t *tx) putFunction(f *Function) error {
	_, err := t.sql.Exec(`INSERT INTO functions VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE
		SET image = excluded.image, spec = excluded.spec, deployed = excluded.deployed`,
		f.Name, f.Image, string(f.Spec), f.Deployed.UnixNano())
	if err == nil {
		_, err = t.sql.Exec(`DELETE FROM function_images WHERE function = ?`, f.Name)
	}
	for _, d := range f.Images {
		if err == nil {
			_, err = t.sql.Exec(`INSERT INTO function_images VALUES (?, ?)`, f.Name, d)
		}
	}
	t.showFunction(f.Name, f)
	return err
}

func (t *tx) removeFunction(name string) error {
	_, err := t.sql.Exec(`DELETE FROM functions WHERE name = ?`, name)
	t.showFunction(name, nil)
	return err
}

// showFunction sets the function of that name in the snapshot and index; nil removes it.
func (t *tx) showFunction(name string, f *Function) {
	list := slices.Clone(t.next.functionList)
	i, found := slices.BinarySearchFunc(list, name, func(f *Function, name string) int { return strings.Compare(f.Name, name) })
	switch {
	case f == nil && found:
		list = slices.Delete(list, i, i+1)
	case f != nil && found:
		list[i] = f
	case f != nil:
		list = slices.Insert(list, i, f)
	}
	t.next.functionList = list
	if f != nil {
		t.next.functions[name] = f
		t.index = append(t.index, indexLine{Function: f})
	} else {
		delete(t.next.functions, name)
		t.index = append(t.index, indexLine{NoFunction: name})
	}
}

// putTenant enters a tenant. ID 0 asks for a new id.
func (t *tx) putTenant(n Tenant) (Tenant, error) {
	id := sql.NullInt64{Int64: int64(n.ID), Valid: n.ID != 0}
	r, err := t.sql.Exec(`INSERT INTO tenants VALUES (?, ?)`, id, n.Name)
	if err != nil {
		return Tenant{}, err
	}
	last, err := r.LastInsertId()
	if err != nil {
		return Tenant{}, err
	}
	n.ID = uint32(last)
	t.next.tenants[n.Name] = n
	t.index = append(t.index, indexLine{Tenant: &n})
	return n, nil
}
