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

// outgoing is an image to be saved or pushed.
type outgoing struct {
	img    *store.Image
	names  []string // to save it under
	config []byte
	layers []packing
	// ofParts: the layers are parts, the configuration is the store's manifest.
	ofParts bool
}

func (o *outgoing) title() string {
	if len(o.names) > 0 {
		return o.names[0]
	}
	return short(o.img.Digest)
}

// ordinary reports whether the image came from elsewhere. Such an image is sent unchanged.
func ordinary(img *store.Image) bool {
	c, err := image.ConfigOf(img)
	return err == nil && c.Container != nil
}

// labelConfig is the label with FRE's own configuration on an image that FRE built.
const labelConfig = "fre.config"

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
	if p.Prefix != "" {
		names := strings.Split(p.Prefix, "/")
		for i := range names {
			h, err := entryHeader(&store.Entry{Kind: store.KindDir, Path: strings.Join(names[:i+1], "/"), Mode: 0o755}, "")
			if err != nil {
				return err
			}
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
		h, err := entryHeader(&e, p.Prefix)
		if err != nil {
			return err
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

// entryHeader returns the header for an entry below prefix.
func entryHeader(e *store.Entry, prefix string) (*tar.Header, error) {
	h := &tar.Header{
		Name: path.Join(prefix, e.Path), Mode: int64(e.Mode), ModTime: time.Unix(e.MTime, 0), Uid: int(e.UID), Gid: int(e.GID), Format: tar.FormatPAX,
	}
	switch e.Kind {
	case store.KindDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case store.KindSymlink:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Link, 0o777
	case store.KindFile:
		h.Typeflag, h.Size = tar.TypeReg, e.Size
	case store.KindWhiteout:
		return nil, fmt.Errorf("%s: %w", e.Path, store.ErrNotLayer)
	}
	return h, nil
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

// outgoingArtifact describes the parts' archives.
func (j *job) outgoingArtifact(img *store.Image) (*outgoing, error) {
	raw, err := j.store.ManifestBytes(img.Digest)
	if err != nil {
		return nil, err
	}
	out := &outgoing{img: img, config: raw, ofParts: true}
	for _, p := range img.Parts {
		l := packing{key: partKey(p.Tree), title: partTitle(p), tree: p.Tree, media: mediaPart, write: archiveOf(func(ctx context.Context, w *tar.Writer) error {
			return j.packPart(ctx, w, p.Tree)
		})}
		if l.size, err = j.partSize(p.Tree); err != nil {
			return nil, err
		}
		out.layers = append(out.layers, l)
	}
	return out, nil
}

// partSize estimates the size of a part's archive, for progress.
func (j *job) partSize(tree store.Digest) (n int64, err error) {
	t, err := j.store.Tree(tree)
	if err != nil {
		return 0, err
	}
	for e := range t.Objects() {
		n += (e.Size+511)&^511 + 512
	}
	return n, nil
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
