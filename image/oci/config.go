package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// configPath names the configuration in its tree. As an entry of a layer the name would be a
// whiteout.
const configPath = ".wh..wh..fre-config"

// configKind is the kind of the part with the configuration's tree.
const configKind = "config"

// configKey is the key of a configuration's part in the store.
func configKey(id store.Digest) string { return "config:" + string(id) }

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

func treeSize(s *store.Store, d store.Digest) (int64, error) {
	t, err := s.Tree(d)
	if err != nil {
		return 0, err
	}
	return store.SizeOf(t.Entries), nil
}
