package oci

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// labelConfig is the label with FRE's own configuration on an image that FRE built.
const labelConfig = "fre.config"

// Save writes the images as an archive for docker load, podman and FRE: an OCI layout with docker's
// manifest.json, layers not packed. A reference by name keeps that name. Errors: fs.ErrNotExist,
// and the errors of the store and of w.
func Save(ctx context.Context, s *store.Store, w io.Writer, refs []string, o Options) error {
	defer s.Hold()()
	j := newJob(s, o)
	var images []*outgoing
	for _, ref := range refs {
		img, name, err := s.Find(ref)
		if err != nil {
			return fmt.Errorf("save: %w", err)
		}
		i := slices.IndexFunc(images, func(o *outgoing) bool { return o.img.Digest == img.Digest })
		if i < 0 {
			out, err := j.outgoing(ctx, img)
			if err != nil {
				return fmt.Errorf("save %s: %w", ref, err)
			}
			i, images = len(images), append(images, out)
		}
		if name != "" && !slices.Contains(images[i].names, name) {
			images[i].names = append(images[i].names, name)
		}
	}
	buffered := bufio.NewWriterSize(w, 256<<10)
	a := archiveWriter{ctx: ctx, j: j, tar: tar.NewWriter(buffered), written: map[string]bool{}}
	for _, out := range images {
		if err := a.image(out); err != nil {
			return fmt.Errorf("save %s: %w", out.title(), err)
		}
	}
	if err := a.end(); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	return buffered.Flush()
}

// outgoing is an image to be saved or pushed.
type outgoing struct {
	img    *store.Image
	names  []string // to save it under
	config []byte
	layers []packing
	// artifact: the layers are parts, the configuration is the store's manifest.
	artifact bool
}

func (o *outgoing) title() string {
	if len(o.names) > 0 {
		return o.names[0]
	}
	return short(o.img.Digest)
}

// packing describes how to make a layer's archive.
type packing struct {
	diff  store.Digest // of a layer
	key   string       // names the archive's bytes: diff, or partKey
	title string       // for people
	media types.MediaType
	tree  store.Digest // the packed tree; "" for an archive without a tree of the store
	size  int64        // of the archive; an estimate for a part
	write func(context.Context, io.Writer) error
}

// outgoing describes the image's configuration and layers: the original ones of an ordinary image,
// or, if FRE built the image, one layer for each part.
func (j *job) outgoing(ctx context.Context, img *store.Image) (*outgoing, error) {
	out := &outgoing{img: img}
	if i := slices.IndexFunc(img.Parts, func(p store.Part) bool { return p.Kind == configKind }); i >= 0 && ordinary(img) {
		for _, p := range img.Parts {
			if p.Diff == "" {
				continue
			}
			l, err := j.recorded(p)
			if err != nil {
				return nil, err
			}
			out.layers = append(out.layers, l)
		}
		b, err := readConfig(j.store, img.Parts[i].Tree)
		out.config = b
		return out, err
	}
	base, err := made(ctx, mountPoints)
	if err != nil {
		return nil, err
	}
	out.layers = append(out.layers, base)
	history := []v1.History{{CreatedBy: "fre: mount points"}}
	for _, p := range img.Parts {
		var l packing
		if p.Diff != "" { // a layer of a base that came from elsewhere
			l, err = j.recorded(p)
		} else {
			l, err = made(ctx, func(ctx context.Context, w *tar.Writer) error { return j.writePart(ctx, w, p) })
			l.tree, l.title = p.Tree, partTitle(p)
		}
		if err != nil {
			return nil, fmt.Errorf("part %s %s: %w", p.Kind, p.Name, err)
		}
		out.layers = append(out.layers, l)
		history = append(history, v1.History{CreatedBy: strings.TrimSpace("fre: " + p.Kind + " " + p.Name + " " + p.Version)})
	}
	out.config, err = ownConfig(img, out.layers, history)
	return out, err
}

// recorded returns a layer that is packed by its recipe, byte for byte.
func (j *job) recorded(p store.Part) (packing, error) {
	t, err := j.store.Tree(p.Tree)
	if err != nil {
		return packing{}, err
	}
	contents := files(t)
	walk := func(raw func([]byte) error, file func(*store.Entry) error) error {
		r, err := openRecipe(j.store, t)
		if err != nil {
			return err
		}
		if r == nil {
			return fmt.Errorf("layer %s: %w: missing", short(p.Diff), ErrRecipe)
		}
		defer r.Close()
		return readRecipe(r, raw, func(path string) error {
			e := contents[path]
			if e == nil {
				return fmt.Errorf("layer %s: %w: %s is not in the layer's tree", short(p.Diff), ErrRecipe, clip(path))
			}
			return file(e)
		})
	}
	l := packing{diff: p.Diff, key: string(p.Diff), title: short(p.Diff), media: types.OCILayer, tree: p.Tree}
	err = walk(func(b []byte) error { l.size += int64(len(b)); return nil },
		func(e *store.Entry) error { l.size += e.Size; return nil })
	if err != nil {
		return packing{}, err
	}
	l.write = func(ctx context.Context, w io.Writer) error {
		hash := sha256.New()
		w = io.MultiWriter(w, hash)
		err := walk(func(b []byte) error { _, err := w.Write(b); return err },
			func(e *store.Entry) error { return j.copyFile(ctx, w, e) })
		if err == nil && hex.EncodeToString(hash.Sum(nil)) != strings.TrimPrefix(string(p.Diff), "sha256:") {
			err = fmt.Errorf("layer %s has changed on disk: check the store with fre system fsck", short(p.Diff))
		}
		return err
	}
	return l, nil
}

func (j *job) copyFile(ctx context.Context, w io.Writer, e *store.Entry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f, err := j.store.OpenFile(e)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(w, f)
	if err == nil && n != e.Size {
		err = fmt.Errorf("%s has %d bytes, not %d: fre system fsck finds out why", e.Path, n, e.Size)
	}
	return err
}

// made returns a layer whose archive write makes, the same each time. The first call of write
// computes the digest.
func made(ctx context.Context, write func(context.Context, *tar.Writer) error) (packing, error) {
	whole := archiveOf(write)
	hash := sha256.New()
	n := &countingWriter{w: hash}
	if err := whole(ctx, n); err != nil {
		return packing{}, err
	}
	diff := store.Digest("sha256:" + hex.EncodeToString(hash.Sum(nil)))
	return packing{diff: diff, key: string(diff), title: short(diff), media: types.OCILayer, size: n.n, write: whole}, nil
}

// archiveOf returns a function that writes a whole archive with the entries of write.
func archiveOf(write func(context.Context, *tar.Writer) error) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		b := bufio.NewWriterSize(w, 64<<10)
		t := tar.NewWriter(b)
		if err := write(ctx, t); err != nil {
			return err
		}
		if err := t.Close(); err != nil {
			return err
		}
		return b.Flush()
	}
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// mountPoints writes a sandbox's mount points, for other engines; /tmp and /work are writable.
func mountPoints(_ context.Context, w *tar.Writer) error {
	for _, h := range []tar.Header{
		{Name: "dev/", Mode: 0o755},
		{Name: "proc/", Mode: 0o755},
		{Name: "run/", Mode: 0o755},
		{Name: "sys/", Mode: 0o755},
		{Name: "tmp/", Mode: 0o1777},
		{Name: "work/", Mode: 0o755, Uid: image.FunctionID, Gid: image.FunctionID},
	} {
		h.Typeflag, h.ModTime, h.Format = tar.TypeDir, time.Unix(0, 0), tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
	}
	return nil
}

// writePart packs a tree at its prefix.
func (j *job) writePart(ctx context.Context, w *tar.Writer, p store.Part) error {
	t, err := j.store.Tree(p.Tree)
	if err != nil {
		return err
	}
	header := func(e store.Entry) *tar.Header {
		return &tar.Header{
			Name: e.Path, Mode: int64(e.Mode), ModTime: time.Unix(e.MTime, 0), Uid: int(e.UID), Gid: int(e.GID), Format: tar.FormatPAX,
		}
	}
	if p.Prefix != "" {
		names := strings.Split(p.Prefix, "/")
		for i := range names {
			h := header(store.Entry{Path: strings.Join(names[:i+1], "/") + "/", Mode: 0o755})
			h.Typeflag = tar.TypeDir
			if err := w.WriteHeader(h); err != nil {
				return err
			}
		}
	}
	for i := range t.Entries {
		e := t.Entries[i]
		if e.Aside {
			continue
		}
		h := header(e)
		h.Name = path.Join(p.Prefix, e.Path)
		switch e.Kind {
		case store.KindDir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case store.KindSymlink:
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Link, 0o777
		case store.KindFile:
			h.Typeflag, h.Size = tar.TypeReg, e.Size
		case store.KindWhiteout:
			return fmt.Errorf("%s: %w", e.Path, store.ErrNotLayer)
		}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
		if e.Kind == store.KindFile {
			if err := j.copyFile(ctx, w, &e); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownConfig describes an image that FRE built for engines besides FRE.
func ownConfig(img *store.Image, layers []packing, history []v1.History) ([]byte, error) {
	c, err := image.ConfigOf(img)
	if err != nil {
		return nil, err
	}
	own := c.AsContainer()
	f := v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Created: v1.Time{Time: img.Created},
		Config: v1.Config{
			Env: c.Env, Cmd: own.Cmd, User: own.User, WorkingDir: own.WorkingDir,
			Labels: map[string]string{labelConfig: string(img.Config)},
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
	maps.Copy(f.Config.Labels, c.Labels)
	for i, l := range layers {
		h, err := v1.NewHash(string(l.diff))
		if err != nil {
			return nil, err
		}
		f.RootFS.DiffIDs = append(f.RootFS.DiffIDs, h)
		history[i].Created = f.Created
	}
	f.History = history
	return json.Marshal(f)
}

// History returns the configuration's history, oldest first. A step that made no layer has size 0.
func History(s *store.Store, img *store.Image) ([]Step, error) {
	i := slices.IndexFunc(img.Parts, func(p store.Part) bool { return p.Kind == configKind })
	if i < 0 {
		return partHistory(s, img)
	}
	b, err := readConfig(s, img.Parts[i].Tree)
	if err != nil {
		return nil, err
	}
	f, err := parseConfig(b)
	if err != nil {
		return nil, err
	}
	layers := slices.DeleteFunc(slices.Clone(img.Parts), func(p store.Part) bool { return p.Diff == "" })
	var steps []Step
	for _, h := range f.History {
		step := Step{Created: h.Created.UTC(), CreatedBy: h.CreatedBy, Author: h.Author, Comment: h.Comment}
		if !h.EmptyLayer && len(layers) > 0 {
			if step.Size, err = treeSize(s, layers[0].Tree); err != nil {
				return nil, err
			}
			layers = layers[1:]
		}
		steps = append(steps, step)
	}
	for _, p := range layers { // layers that the history leaves out
		size, err := treeSize(s, p.Tree)
		if err != nil {
			return nil, err
		}
		steps = append(steps, Step{Created: f.Created.UTC(), Size: size})
	}
	return steps, nil
}

// partHistory returns a step for each part of an image without a configuration.
func partHistory(s *store.Store, img *store.Image) ([]Step, error) {
	steps := make([]Step, 0, len(img.Parts))
	for _, p := range img.Parts {
		size, err := treeSize(s, p.Tree)
		if err != nil {
			return nil, err
		}
		steps = append(steps, Step{
			Created: img.Created, CreatedBy: strings.TrimSpace("fre: " + p.Kind + " " + p.Name + " " + p.Version), Size: size,
		})
	}
	return steps, nil
}

// DiffIDs returns the digests of an image's layers in the order of Save's configuration, the lowest
// first. It makes the archives of parts that are no layers.
func DiffIDs(ctx context.Context, s *store.Store, img *store.Image) ([]store.Digest, error) {
	defer s.Hold()()
	var ids []store.Digest
	if ordinary(img) {
		for _, p := range img.Parts {
			if p.Diff != "" {
				ids = append(ids, p.Diff)
			}
		}
		return ids, nil
	}
	out, err := newJob(s, Options{}).outgoing(ctx, img)
	if err != nil {
		return nil, fmt.Errorf("layers of %s: %w", short(img.Digest), err)
	}
	for _, l := range out.layers {
		ids = append(ids, l.diff)
	}
	return ids, nil
}

// Step is one line of an image's history.
type Step struct {
	Created   time.Time
	CreatedBy string
	Author    string
	Comment   string
	Size      int64 // bytes of the files its layer holds
}

func treeSize(s *store.Store, d store.Digest) (int64, error) {
	t, err := s.Tree(d)
	if err != nil {
		return 0, err
	}
	return store.SizeOf(t.Entries), nil
}

// archiveWriter writes an OCI layout with docker's manifest.json.
type archiveWriter struct {
	ctx     context.Context //nolint:containedctx // lives as long as one Save
	j       *job
	tar     *tar.Writer
	written map[string]bool
	index   v1.IndexManifest
	docker  []dockerImage
}

func (a *archiveWriter) image(o *outgoing) error {
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	d := dockerImage{RepoTags: o.names}
	for _, l := range o.layers {
		desc, err := descriptor(types.OCIUncompressedLayer, l.diff, l.size)
		if err != nil {
			return err
		}
		a.j.event(image.Progress{Step: "layer", Name: short(l.diff), Message: "pack", Total: l.size, Unit: image.UnitBytes})
		name := blobPath(desc.Digest)
		if err := a.blob(name, l.size, func(w io.Writer) error { return l.write(a.ctx, w) }); err != nil {
			return err
		}
		a.j.event(image.Progress{Step: "layer", Name: short(l.diff), Done: l.size, Total: l.size, Unit: image.UnitBytes, End: true})
		m.Layers = append(m.Layers, desc)
		d.Layers = append(d.Layers, name)
	}
	var err error
	if m.Config, err = a.small(types.OCIConfigJSON, o.config); err != nil {
		return err
	}
	d.Config = blobPath(m.Config.Digest)
	a.docker = append(a.docker, d)
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	desc, err := a.small(types.OCIManifestSchema1, b)
	if err != nil {
		return err
	}
	desc.Platform = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	if len(o.names) == 0 {
		a.index.Manifests = append(a.index.Manifests, desc)
	}
	for _, name := range o.names {
		named := desc
		r, err := store.ParseReference(name)
		if err != nil {
			return err
		}
		named.Annotations = map[string]string{annotationName: canonical(name), annotationRef: r.Version}
		a.index.Manifests = append(a.index.Manifests, named)
	}
	return nil
}

// canonical returns the full form of a name that docker abbreviates.
func canonical(name string) string {
	first, _, more := strings.Cut(name, "/")
	switch {
	case !more:
		return "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		return "docker.io/" + name
	}
	return name
}

func descriptor(t types.MediaType, d store.Digest, size int64) (v1.Descriptor, error) {
	h, err := v1.NewHash(string(d))
	return v1.Descriptor{MediaType: t, Digest: h, Size: size}, err
}

func (a *archiveWriter) small(t types.MediaType, b []byte) (v1.Descriptor, error) {
	d, err := descriptor(t, digestOf(b), int64(len(b)))
	if err != nil {
		return d, err
	}
	return d, a.file(blobPath(d.Digest), b)
}

func (a *archiveWriter) file(name string, b []byte) error {
	return a.blob(name, int64(len(b)), func(w io.Writer) error { _, err := w.Write(b); return err })
}

// blob writes a file once, after the directories above.
func (a *archiveWriter) blob(name string, size int64, write func(io.Writer) error) error {
	if a.written[name] {
		return nil
	}
	a.written[name] = true
	for i, c := range name {
		if dir := name[:i]; c == '/' && !a.written[dir] {
			a.written[dir] = true
			if err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
				return err
			}
		}
	}
	if err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
		return err
	}
	return write(a.tar)
}

func (a *archiveWriter) end() error {
	a.index.SchemaVersion, a.index.MediaType = 2, types.OCIImageIndex
	index, err := json.Marshal(a.index)
	if err != nil {
		return err
	}
	docker, err := json.Marshal(a.docker)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{{"index.json", index}, {"manifest.json", docker}, {"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}} {
		if err := a.file(f.name, f.content); err != nil {
			return err
		}
	}
	return a.tar.Close()
}
