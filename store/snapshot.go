package store

import (
	"bytes"
	"cmp"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"
)

// snapshot is all metadata; immutable once published.
type snapshot struct {
	byDigest  map[Digest]*Image
	tags      map[tag]Digest
	remotes   map[string]Digest // by "name@sha256:…"
	parts     map[string]Part
	functions map[string]*Function
	tenants   map[string]Tenant

	images       []*Image    // newest first
	functionList []*Function // by name

	serial    int64  // highest serial of any image so far
	imagesGen uint64 // generation of the last change of images
	sizes     *Sizes
}

func newSnapshot() *snapshot {
	return &snapshot{
		byDigest:  make(map[Digest]*Image),
		tags:      make(map[tag]Digest),
		remotes:   make(map[string]Digest),
		parts:     make(map[string]Part),
		functions: make(map[string]*Function),
		tenants:   make(map[string]Tenant),
		sizes:     new(Sizes),
	}
}

func (n *snapshot) clone() *snapshot {
	return &snapshot{
		byDigest:  maps.Clone(n.byDigest),
		tags:      maps.Clone(n.tags),
		remotes:   maps.Clone(n.remotes),
		parts:     maps.Clone(n.parts),
		functions: maps.Clone(n.functions),
		tenants:   maps.Clone(n.tenants),

		images: n.images, functionList: n.functionList, // replaced, not changed
		serial: n.serial, imagesGen: n.imagesGen, sizes: n.sizes,
	}
}

// readSnapshot loads the database. With 10,000 images this is most of an engine's start and of
// its memory, so data shared by images is decoded and kept once.
func readSnapshot(q queryer) (*snapshot, error) {
	n := newSnapshot()
	for _, read := range []func(queryer) error{n.readRows, n.readTags, n.readRemotes, n.readParts, n.readFunctions, n.readTenants} {
		if err := read(q); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// noImage reports damage: foreign keys let no row refer to a missing image.
func noImage(what string, d Digest) error {
	return fmt.Errorf("%w: %s belongs to the missing image %s", errCorrupt, what, d)
}

func (n *snapshot) readRows(q queryer) error {
	type placed struct {
		*Image
		serial int64
	}
	var order []placed
	manifests := newManifestCache()
	err := eachRow(q, `SELECT digest, manifest, created, size, files, serial, f.image IS NOT NULL
		FROM images LEFT JOIN foreign_images f ON f.image = digest`, func(scan scanFunc) error {
		var img Image
		var manifest sql.RawBytes
		var created, serial int64
		if err := scan(&img.Digest, &manifest, &created, &img.Size, &img.Files, &serial, &img.Foreign); err != nil {
			return err
		}
		if sumDigest(manifest) != img.Digest { // 15 ms of CPU for 10,000
			return fmt.Errorf("%w: the manifest of image %s has changed", errCorrupt, img.Digest)
		}
		var err error
		if img.Manifest, err = manifests.decode(manifest); err != nil {
			return fmt.Errorf("%w: image %s: %w", errCorrupt, img.Digest, err)
		}
		img.Built = tag{img.Name, img.Version}.String()
		img.Created = time.Unix(0, created).UTC()
		n.byDigest[img.Digest] = &img
		order = append(order, placed{&img, serial})
		n.serial = max(n.serial, serial)
		return nil
	})
	slices.SortFunc(order, func(a, b placed) int { return cmp.Compare(b.serial, a.serial) })
	n.images = make([]*Image, len(order))
	for i, o := range order {
		n.images[i] = o.Image
	}
	return err
}

func (n *snapshot) readTags(q queryer) error {
	err := eachRow(q, `SELECT name, version, image FROM tags`, func(scan scanFunc) error {
		var k tag
		var d Digest
		if err := scan(&k.name, &k.version, &d); err != nil {
			return err
		}
		img := n.byDigest[d]
		if img == nil {
			return noImage(k.String(), d)
		}
		name := k.String()
		if name == img.Built {
			name = img.Built // share one string
		}
		img.Names = append(img.Names, name)
		n.tags[splitName(name)] = img.Digest
		return nil
	})
	for _, img := range n.images {
		img.setNames(img.Names)
	}
	return err
}

func (n *snapshot) readRemotes(q queryer) error {
	return eachRow(q, `SELECT name || '@' || digest, image FROM remotes ORDER BY 1`, func(scan scanFunc) error {
		var remote string
		var d Digest
		if err := scan(&remote, &d); err != nil {
			return err
		}
		img := n.byDigest[d]
		if img == nil {
			return noImage(remote, d)
		}
		img.Remotes = append(img.Remotes, remote)
		n.remotes[remote] = img.Digest
		return nil
	})
}

func (n *snapshot) readParts(q queryer) error {
	return eachRow(q, `SELECT key, part FROM parts`, func(scan scanFunc) error {
		var key, part string
		var p Part
		if err := scan(&key, &part); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(part), &p); err != nil {
			return fmt.Errorf("%w: part %s: %w", errCorrupt, key, err)
		}
		n.parts[key] = p
		return nil
	})
}

func (n *snapshot) readFunctions(q queryer) error {
	err := eachRow(q, `SELECT name, image, spec, deployed FROM functions ORDER BY name`, func(scan scanFunc) error {
		var f Function
		var spec string
		var deployed int64
		if err := scan(&f.Name, &f.Image, &spec, &deployed); err != nil {
			return err
		}
		if n.byDigest[f.Image] == nil {
			return noImage("function "+f.Name, f.Image)
		}
		f.Spec, f.Deployed = json.RawMessage(spec), time.Unix(0, deployed).UTC()
		n.functions[f.Name] = &f
		n.functionList = append(n.functionList, &f)
		return nil
	})
	if err != nil {
		return err
	}
	return eachRow(q, `SELECT function, image FROM function_images ORDER BY 1, 2`, func(scan scanFunc) error {
		var name string
		var d Digest
		if err := scan(&name, &d); err != nil {
			return err
		}
		f := n.functions[name]
		if f == nil || n.byDigest[d] == nil {
			return noImage("function "+name, d)
		}
		f.Images = append(f.Images, d)
		return nil
	})
}

func (n *snapshot) readTenants(q queryer) error {
	return eachRow(q, `SELECT id, name FROM tenants`, func(scan scanFunc) error {
		var t Tenant
		if err := scan(&t.ID, &t.Name); err != nil {
			return err
		}
		n.tenants[t.Name] = t
		return nil
	})
}

// manifestCache decodes manifests. Most images share most parts with others, and a function's
// versions often share a configuration. So the cache keys both by their JSON, decodes each once
// and shares the strings.
type manifestCache struct {
	parts   map[string]Part
	configs map[string]json.RawMessage
}

func newManifestCache() *manifestCache {
	return &manifestCache{make(map[string]Part), make(map[string]json.RawMessage)}
}

// decode decodes a manifest. It cuts the output of [json.Marshal] by its outline, and decodes
// any other form as a whole.
//
//	{"name":"n","version":"v","parts":[{…},{…}],"config":{…}}
func (c *manifestCache) decode(b []byte) (Manifest, error) {
	if m, ok := c.outline(b); ok {
		return m, nil
	}
	var m Manifest
	err := json.Unmarshal(b, &m)
	return m, err
}

func (c *manifestCache) outline(b []byte) (m Manifest, ok bool) {
	rest := b
	if m.Name, rest, ok = cutText(rest, `{"name":"`); !ok {
		return m, false
	}
	if m.Version, rest, ok = cutText(rest, `,"version":"`); !ok {
		return m, false
	}
	if m.Parts, rest, ok = c.outlineParts(rest); !ok {
		return m, false
	}
	if string(rest) == "}" {
		return m, true
	}
	rest, ok = bytes.CutPrefix(rest, []byte(`,"config":`))
	if n := objectLen(rest); !ok || n < 0 || string(rest[n:]) != "}" {
		return m, false
	}
	rest = rest[:len(rest)-1]
	if m.Config, ok = c.configs[string(rest)]; !ok && json.Valid(rest) {
		m.Config, ok = bytes.Clone(rest), true
		c.configs[string(rest)] = m.Config
	}
	return m, ok
}

// outlineParts cuts the list of parts off the beginning of b.
func (c *manifestCache) outlineParts(b []byte) (parts []Part, rest []byte, ok bool) {
	if rest, ok = bytes.CutPrefix(b, []byte(`,"parts":[`)); !ok {
		return nil, nil, false
	}
	for {
		n := objectLen(rest)
		if n < 0 {
			return nil, nil, false
		}
		p, known := c.parts[string(rest[:n])]
		if !known {
			if json.Unmarshal(rest[:n], &p) != nil {
				return nil, nil, false
			}
			c.parts[string(rest[:n])] = p
		}
		parts = append(parts, p)
		rest = rest[n:]
		if len(rest) < 2 || rest[0] != ',' {
			break
		}
		rest = rest[1:]
	}
	rest, ok = bytes.CutPrefix(rest, []byte("]"))
	return slices.Clone(parts), rest, ok // Clone drops unused capacity
}

// cutText cuts before and then a JSON string without escapes off the beginning of b.
func cutText(b []byte, before string) (text string, rest []byte, ok bool) {
	if b, ok = bytes.CutPrefix(b, []byte(before)); !ok {
		return "", nil, false
	}
	for i, c := range b {
		switch {
		case c == '"':
			return string(b[:i]), b[i+1:], true
		case c == '\\' || c < ' ' || c >= utf8.RuneSelf:
			return "", nil, false
		}
	}
	return "", nil, false
}

// objectLen returns the length of the JSON object at the beginning of b, by its brackets; -1 if
// b does not begin with an object.
func objectLen(b []byte) int {
	depth, text := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{':
			depth++
		case depth == 0:
			return -1
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

func (n *snapshot) tenantList() []Tenant {
	return slices.SortedFunc(maps.Values(n.tenants), func(a, b Tenant) int { return cmp.Compare(a.ID, b.ID) })
}

// liveTrees returns the trees of all images.
func (n *snapshot) liveTrees() map[Digest]bool {
	live := make(map[Digest]bool)
	for _, img := range n.images {
		for _, p := range img.Parts {
			live[p.Tree] = true
		}
	}
	return live
}

// looseTrees returns the trees of parts that no image has. A failed build leaves such parts: the
// next build finds the part and relies on its objects.
func (n *snapshot) looseTrees() map[Digest]bool {
	loose := make(map[Digest]bool)
	for _, p := range n.parts {
		loose[p.Tree] = true
	}
	n.deleteLive(loose)
	return loose
}

// deleteLive deletes the trees of all images from a set of trees.
func (n *snapshot) deleteLive(trees map[Digest]bool) {
	for _, img := range n.images {
		for i := range img.Parts {
			delete(trees, img.Parts[i].Tree)
		}
	}
}

// keeps reports whether the function keeps the image.
func (f *Function) keeps(d Digest) bool { return f.Image == d || slices.Contains(f.Images, d) }

// without returns a copy of f that no longer keeps image d for a rollback.
func (f *Function) without(d Digest) *Function {
	rest := *f
	rest.Images = slices.DeleteFunc(slices.Clone(f.Images), func(other Digest) bool { return other == d })
	return &rest
}
