package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// source is an image that is not in the store yet.
type source struct {
	config []byte
	// layers has one entry for each of the configuration's diff ids, in order.
	layers []blob
}

// blob is a layer's archive, packed or not.
type blob struct {
	open func(context.Context) (io.ReadCloser, error)
	size int64 // of open's content, for progress; 0 if unknown
	// packed is the registry's descriptor of the blob; nil for archives.
	packed *v1.Descriptor
}

// atOnce is the number of layers that are unpacked, or packed, in parallel. Each keeps about one
// CPU and one connection busy.
const atOnce = 4

// configPath names the configuration in its tree. As an entry of a layer the name would be a
// whiteout.
const configPath = ".wh..wh..fre-config"

// configKind is the kind of the part with the configuration's tree.
const configKind = "config"

// manifest brings the image's layers and configuration into the store. The caller holds the store.
func (j *job) manifest(ctx context.Context, src source) (m store.Manifest, err error) {
	file, err := parseConfig(src.config)
	if err != nil {
		return m, err
	}
	if len(src.layers) != len(file.RootFS.DiffIDs) {
		return m, fmt.Errorf("%w: %d layers, but the configuration names %d: save or download the image again", ErrArchive, len(src.layers), len(file.RootFS.DiffIDs))
	}
	parts := make([]store.Part, len(src.layers), len(src.layers)+1)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, l := range src.layers {
		want := store.Digest(file.RootFS.DiffIDs[i].String())
		g.Go(func() error {
			p, err := j.layer(gctx, want, l)
			parts[i] = p
			if err != nil {
				return fmt.Errorf("layer %d of %d (%s): %w", i+1, len(src.layers), short(want), err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return m, reason(ctx, err) // after gctx's end each layer may return another error
	}
	aside, err := j.keepConfig(ctx, src.config)
	if err != nil {
		return m, err
	}
	config, err := json.Marshal(configOf(file, src.config))
	return store.Manifest{Parts: append(parts, aside), Config: config}, err
}

// put makes the image, without a name.
func (j *job) put(ctx context.Context, m store.Manifest) (*store.Image, error) {
	j.event(image.Progress{Step: "link", Name: m.Parts[len(m.Parts)-1].Name})
	img, err := j.store.PutImage(ctx, m)
	if errors.Is(err, store.ErrConflict) {
		err = fmt.Errorf("%w: conflict with a directory of every sandbox: %w", ErrLayer, err)
	}
	return img, err
}

// layer finds the layer in the store, or unpacks it.
func (j *job) layer(ctx context.Context, want store.Digest, l blob) (store.Part, error) {
	if p, ok := j.store.Part(layerKey(want)); ok {
		j.event(image.Progress{Step: "layer", Name: short(want), Message: "already here", End: true})
		return p, nil
	}
	var p store.Part
	err := l.read(ctx, func(r io.Reader) (err error) {
		progress := &progress{r: r, j: j, e: image.Progress{Step: "layer", Name: short(want), Message: "unpack", Total: l.size, Unit: image.UnitBytes}}
		if p, err = j.unpack(ctx, progress); err != nil {
			return err
		}
		if p.Diff != want {
			return fmt.Errorf("%w: the layer's digest is %s, but the image's configuration says %s: save or download the image again", ErrArchive, p.Diff, want)
		}
		progress.end()
		return nil
	})
	if err == nil && l.packed != nil {
		err = j.remember(ctx, string(p.Diff), p.Tree, *l.packed)
	}
	return p, err
}

// keepConfig puts the configuration, byte for byte, into a separate tree.
func (j *job) keepConfig(ctx context.Context, config []byte) (store.Part, error) {
	w, err := j.store.Create()
	if err != nil {
		return store.Part{}, err
	}
	defer w.Abort()
	if err := w.Aside(configPath, bytes.NewReader(config)); err != nil {
		return store.Part{}, err
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return store.Part{}, err
	}
	id := digestOf(config)
	p := store.Part{Kind: configKind, Name: short(id), Tree: tree}
	return p, j.store.PutPart(ctx, configKey(id), p)
}

// configKey is the key of a configuration's part in the store.
func configKey(id store.Digest) string { return "config:" + string(id) }

// readConfig reads the configuration that keepConfig put into the tree.
func readConfig(s *store.Store, tree store.Digest) ([]byte, error) {
	t, err := s.Tree(tree)
	if err != nil {
		return nil, err
	}
	for i := range t.Entries {
		e := &t.Entries[i]
		if !e.Aside || e.Path != configPath {
			continue
		}
		f, err := s.OpenFile(e)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
		if err == nil && digestOf(b) != e.Digest {
			err = fmt.Errorf("configuration: the stored content has changed: check the store with fre system fsck")
		}
		return b, err
	}
	return nil, fmt.Errorf("configuration in tree %s: %w", tree, fs.ErrNotExist)
}

// progress reports every 512 KiB.
type progress struct {
	r    io.Reader
	j    *job
	e    image.Progress
	last int64
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	const step = 512 << 10
	if p.e.Done += int64(n); p.e.Done-p.last >= step {
		p.last = p.e.Done
		p.j.event(p.e)
	}
	return n, err
}

func (p *progress) end() {
	p.e.End = true
	if p.e.Message = "done"; p.e.Total != 0 {
		p.e.Done = p.e.Total
	}
	p.j.event(p.e)
}

func digestOf(b []byte) store.Digest {
	sum := sha256.Sum256(b)
	return store.Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// chainID is the OCI image-spec's "Layer ChainID" (config.md): it names a layer together with all
// layers below.
func chainID(diffs []v1.Hash) store.Digest {
	if len(diffs) == 0 {
		return ""
	}
	chain := store.Digest(diffs[0].String())
	for _, d := range diffs[1:] {
		chain = digestOf([]byte(string(chain) + " " + d.String()))
	}
	return chain
}

// parseConfig decodes and checks an image's configuration.
func parseConfig(b []byte) (*v1.ConfigFile, error) {
	if len(b) > maxJSON {
		return nil, fmt.Errorf("%w: a configuration of more than %d bytes", ErrLimit, maxJSON)
	}
	f := new(v1.ConfigFile)
	if err := json.Unmarshal(b, f); err != nil {
		return nil, fmt.Errorf("%w: configuration: %w", ErrArchive, err)
	}
	if len(f.RootFS.DiffIDs) > maxLayers {
		return nil, fmt.Errorf("%w of %d layers", ErrLimit, maxLayers)
	}
	for i, d := range f.RootFS.DiffIDs {
		if d.Algorithm != "sha256" {
			return nil, fmt.Errorf("%w: layer %d has the digest %q: only sha256 is supported", ErrArchive, i+1, d)
		}
	}
	// docker import may leave out both OS and architecture.
	if !fits(v1.Platform{OS: f.OS, Architecture: f.Architecture}) {
		return nil, fmt.Errorf("%w: the image is for %s/%s, the engine runs %s: get the image for the engine's platform", ErrPlatform, f.OS, f.Architecture, platform())
	}
	if err := checkTimes(f); err != nil {
		return nil, err
	}
	if err := checkWords(&f.Config); err != nil {
		return nil, err
	}
	return f, nil
}

// checkTimes refuses years that JSON cannot have.
func checkTimes(f *v1.ConfigFile) error {
	times := []v1.Time{f.Created}
	for _, h := range f.History {
		times = append(times, h.Created)
	}
	for _, t := range times {
		if year := t.UTC().Year(); year < 0 || year > 9999 {
			return fmt.Errorf("%w: configuration: a step has the impossible year %d", ErrArchive, year)
		}
	}
	return nil
}

// checkWords refuses NUL bytes, which arguments of programs cannot have.
func checkWords(c *v1.Config) error {
	for _, list := range [][]string{c.Env, c.Cmd, c.Entrypoint, {c.User, c.WorkingDir}} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return fmt.Errorf("%w: configuration: %q holds a NUL byte", ErrArchive, s)
			}
		}
	}
	return nil
}

// configOf returns the configuration that the store's manifest holds for an ordinary image.
func configOf(f *v1.ConfigFile, raw []byte) image.Config {
	c := f.Config
	p := platform()
	if f.Variant != "" {
		p += "/" + f.Variant
	}
	var health struct {
		Config struct{ Healthcheck json.RawMessage }
	}
	_ = json.Unmarshal(raw, &health) // parseConfig has decoded the same bytes
	return image.Config{
		Args: slices.Concat(c.Entrypoint, c.Cmd), Env: c.Env, Protocol: image.ProtocolNone,
		Container: &image.Container{
			ID: digestOf(raw), Chain: chainID(f.RootFS.DiffIDs), Created: f.Created.UTC(), Author: f.Author, Platform: p,
			User: c.User, Entrypoint: c.Entrypoint, Cmd: c.Cmd, WorkingDir: c.WorkingDir, Labels: c.Labels,
			ExposedPorts: slices.Sorted(maps.Keys(c.ExposedPorts)), Volumes: slices.Sorted(maps.Keys(c.Volumes)),
			StopSignal: c.StopSignal, Shell: c.Shell, OnBuild: c.OnBuild, Healthcheck: health.Config.Healthcheck,
		},
	}
}

// bring calls manifest, put and name. If a name fails, the image is not kept.
func (j *job) bring(ctx context.Context, src source, names []string) (*store.Image, error) {
	m, err := j.manifest(ctx, src)
	if err != nil {
		return nil, err
	}
	before := j.store.Images()
	img, err := j.put(ctx, m)
	if err != nil {
		return nil, err
	}
	named, err := j.name(ctx, img, names)
	if err != nil {
		j.forget(ctx, before, []*store.Image{img})
		return nil, err
	}
	return named, nil
}

// name gives the image its names, in the grammar of the store's references; "name@sha256:…" is a
// registry's name of the image. It does not end with ctx: naming is fast, and a name that has moved
// does not move back.
func (j *job) name(ctx context.Context, img *store.Image, names []string) (*store.Image, error) {
	ctx = context.WithoutCancel(ctx)
	for _, n := range names {
		tag := j.store.Tag
		if strings.Contains(n, "@") {
			tag = j.store.TagRemote
		}
		named, err := tag(ctx, img.Digest, n)
		if err != nil {
			return nil, err
		}
		img = named
	}
	return img, nil
}

// checkNames refuses bad names before the archive is unpacked.
func checkNames(names []string) error {
	for _, n := range names {
		r, err := store.ParseReference(n)
		if err == nil {
			err = r.Check()
		}
		if err == nil && r.Digest != "" {
			err = errors.New("a name cannot hold a digest")
		}
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrReference, n, err)
		}
	}
	return nil
}
