package oci

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

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
