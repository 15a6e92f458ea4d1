package oci

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// archive is an image archive. Its files are unpacked into a scratch directory under numbers,
// because their order and the number of their uses are known only at the end of the archive.
type archive struct {
	dir   string
	files map[string]spooled // by clean name
	links map[string]string
	held  int64 // bytes in memory: names, manifests and configurations
}

type spooled struct {
	path string
	size int64
}

// maxArchiveEntries allows four entries for each layer of a thousand images.
const maxArchiveEntries = 1 << 18

// maxHeld bounds the memory that an archive takes: names, manifests and configurations. A file
// counts each time the archive names it.
const maxHeld = 128 << 20

func (a *archive) hold(bytes int) error {
	if a.held += int64(bytes); a.held > maxHeld {
		return fmt.Errorf("%w of %d bytes of names, manifests and configurations in an archive", ErrLimit, int64(maxHeld))
	}
	return nil
}

// spool writes the archive's files to a scratch directory.
func (j *job) spool(ctx context.Context, r io.Reader) (_ *archive, err error) {
	plain, err := decompress(r, j.limits)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	dir, err := j.store.MkdirScratch()
	if err != nil {
		return nil, err
	}
	a := &archive{dir: dir, files: map[string]spooled{}, links: map[string]string{}}
	defer func() {
		if err != nil {
			a.remove()
		}
	}()
	j.event(image.Progress{Step: "read"})
	return a, a.fill(ctx, tar.NewReader(plain), j.limits.Bytes)
}

// fill unpacks the files, limit bytes at most.
func (a *archive) fill(ctx context.Context, t *tar.Reader, limit int64) error {
	left := limit
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return fmt.Errorf("%w: empty", ErrArchive)
			}
			return nil
		}
		if err != nil {
			if n == 0 && errors.Is(err, tar.ErrHeader) {
				err = fmt.Errorf("%w: not a tar", ErrArchive)
			}
			return archiveError(err)
		}
		if n == maxArchiveEntries {
			return fmt.Errorf("%w of %d files in an archive", ErrLimit, maxArchiveEntries)
		}
		if err := a.add(h, t, n, &left, limit); err != nil {
			return fmt.Errorf("archive: %s: %w", clip(h.Name), archiveError(err))
		}
	}
}

func (a *archive) add(h *tar.Header, r io.Reader, n int, left *int64, limit int64) error {
	name, err := inside(h.Name)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if err := a.hold(len(name) + len(h.Linkname)); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink: // docker writes a shared layer once, with symlinks to it
		delete(a.files, name)
		a.links[name] = path.Join(path.Dir(name), h.Linkname)
		return nil
	case tar.TypeLink:
		delete(a.files, name)
		a.links[name] = path.Clean(strings.TrimLeft(h.Linkname, "/"))
		return nil
	case tar.TypeReg:
	default:
		return nil
	}
	delete(a.links, name) // of two entries the last counts
	f, err := os.OpenFile(filepath.Join(a.dir, strconv.Itoa(n)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// Not h.Size: a sparse entry claims more than it holds.
	size, err := io.Copy(f, io.LimitReader(r, *left+1))
	if *left -= size; err == nil && *left < 0 {
		err = fmt.Errorf("%w of %d bytes", ErrLimit, limit)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	a.files[name] = spooled{f.Name(), size}
	return nil
}

func (a *archive) remove() { _ = os.RemoveAll(a.dir) } // the store's next Open removes leftovers

// find returns the file of a name. It follows the archive's own symlinks.
func (a *archive) find(name string) (spooled, error) {
	clean := path.Clean(name)
	for range 8 {
		if f, ok := a.files[clean]; ok {
			return f, nil
		}
		target, ok := a.links[clean]
		if !ok {
			break
		}
		clean = target
	}
	return spooled{}, fmt.Errorf("%w: %s is named but missing: save the image again", ErrArchive, clip(name))
}

func (a *archive) blob(name string) (blob, error) {
	f, err := a.find(name)
	if err != nil {
		return blob{}, err
	}
	return blob{size: f.size, open: func(context.Context) (io.ReadCloser, error) { return os.Open(f.path) }}, nil
}

// read returns a small file.
func (a *archive) read(name string) ([]byte, error) {
	f, err := a.find(name)
	if err != nil {
		return nil, err
	}
	if f.size > maxJSON {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrLimit, clip(name), maxJSON)
	}
	if err := a.hold(int(f.size)); err != nil {
		return nil, err
	}
	return os.ReadFile(f.path)
}

// archived is one image of an archive.
type archived struct {
	source
	names []string // with versions
}

func (i *archived) title() string {
	if len(i.names) > 0 {
		return i.names[0]
	}
	return short(digestOf(i.config))
}

func (a *archive) parse() ([]archived, error) {
	if _, ok := a.files["manifest.json"]; ok {
		return a.docker()
	}
	if _, ok := a.files["index.json"]; ok {
		return a.layout()
	}
	return nil, fmt.Errorf("%w: neither manifest.json nor index.json: write the archive with docker save or fre image save; load a plain file system with import", ErrArchive)
}

func (a *archive) docker() ([]archived, error) {
	b, err := a.read("manifest.json")
	if err != nil {
		return nil, err
	}
	var list []dockerImage
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%w: manifest.json: %w", ErrArchive, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: manifest.json names no image", ErrArchive)
	}
	out := make([]archived, 0, len(list))
	for _, m := range list {
		i, err := a.dockerImage(m)
		if err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, nil
}

func (a *archive) dockerImage(m dockerImage) (i archived, err error) {
	if len(m.Layers) > maxLayers {
		return i, fmt.Errorf("%w of %d layers", ErrLimit, maxLayers)
	}
	if err := checkNames(m.RepoTags); err != nil {
		return i, fmt.Errorf("manifest.json: %w", err)
	}
	for _, name := range m.RepoTags {
		i.names = append(i.names, Familiar(name))
	}
	if i.config, err = a.read(m.Config); err != nil {
		return i, err
	}
	for _, name := range m.Layers {
		l, err := a.blob(name)
		if err != nil {
			return i, err
		}
		i.layers = append(i.layers, l)
	}
	return i, nil
}

func (a *archive) layout() ([]archived, error) {
	b, err := a.read("index.json")
	if err != nil {
		return nil, err
	}
	var out []archived
	if err := a.index(b, nil, 0, &out); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: index.json names no image for %s", ErrPlatform, platform())
	}
	return out, nil
}

// index adds the images of an index that fit this platform. A nested index stands for one image on
// several platforms.
func (a *archive) index(b []byte, names []string, depth int, out *[]archived) error {
	var index v1.IndexManifest
	if err := json.Unmarshal(b, &index); err != nil {
		return fmt.Errorf("%w: index: %w", ErrArchive, err)
	}
	if depth > 4 || len(index.Manifests) > maxArchiveEntries {
		return fmt.Errorf("%w: an index within an index within an index", ErrArchive)
	}
	for _, d := range index.Manifests {
		if d.Platform != nil && !fits(*d.Platform) || d.Annotations["vnd.docker.reference.type"] != "" {
			continue
		}
		names := slices.Concat(names, annotated(d.Annotations))
		b, err := a.checkedBlob(d.Digest)
		if err != nil {
			return err
		}
		if d.MediaType.IsIndex() {
			if err := a.index(b, names, depth+1, out); err != nil {
				return err
			}
			continue
		}
		i, err := a.manifest(b)
		if err != nil {
			return fmt.Errorf("manifest %s: %w", d.Digest, err)
		}
		if i.names = names; depth > 0 && len(*out) > 0 && len(names) > 0 && slices.Equal((*out)[len(*out)-1].names, names) {
			continue // another variant: the first that fits counts
		}
		*out = append(*out, i)
	}
	return nil
}

func (a *archive) manifest(b []byte) (archived, error) {
	var m v1.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return archived{}, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if !m.Config.MediaType.IsConfig() {
		return archived{}, fmt.Errorf("%w: the configuration has the type %q: not an image", ErrArchive, m.Config.MediaType)
	}
	if len(m.Layers) > maxLayers {
		return archived{}, fmt.Errorf("%w of %d layers", ErrLimit, maxLayers)
	}
	var i archived
	var err error
	if i.config, err = a.checkedBlob(m.Config.Digest); err != nil {
		return archived{}, err
	}
	for _, d := range m.Layers {
		l, err := a.blob(blobPath(d.Digest))
		if err != nil {
			return archived{}, err
		}
		i.layers = append(i.layers, l)
	}
	return i, nil
}

// checkedBlob reads a small blob and checks its digest. Layers are checked by their diff ids.
func (a *archive) checkedBlob(d v1.Hash) ([]byte, error) {
	b, err := a.read(blobPath(d))
	if err != nil {
		return nil, err
	}
	if got := digestOf(b); string(got) != d.String() {
		return nil, fmt.Errorf("%w: blob %s has the digest %s: save the image again", ErrArchive, d, got)
	}
	return b, nil
}

// annotated returns the image's name from the annotations, if they hold a whole reference.
func annotated(a map[string]string) []string {
	for _, key := range []string{annotationName, annotationRef} {
		n := a[key]
		if r, err := store.ParseReference(n); err == nil && r.Version != "" && r.Digest == "" && r.Check() == nil {
			return []string{Familiar(n)}
		}
	}
	return nil
}
