package servertest

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Load adds one image for each entry of the archive's manifest.json.
func (e *Engine) Load(_ context.Context, r io.Reader, report func(image.Progress)) ([]*store.Image, error) {
	report(image.Progress{Step: "read"})
	var list []struct{ RepoTags []string }
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("load: %w: not a tar", oci.ErrArchive)
		}
		if h.Name == "manifest.json" {
			if err := json.NewDecoder(t).Decode(&list); err != nil {
				return nil, fmt.Errorf("load: %w: %w", oci.ErrArchive, err)
			}
		}
	}
	var out []*store.Image
	for _, m := range list {
		out = append(out, e.come(m.RepoTags))
	}
	return out, nil
}

// come adds an ordinary image. The digest is the digest of the names.
func (e *Engine) come(names []string) *store.Image {
	sum := sha256.Sum256([]byte(strings.Join(names, " ")))
	colon := strings.LastIndexByte(names[0], ':')
	img := e.add(&store.Image{Created: Epoch, Size: 1 << 20, Files: 3}, &template.Template{ID: names[0][:colon], Version: names[0][colon+1:]}, sum[:])
	img.Names = names
	return img
}

// Save writes an archive in the form that Load reads.
func (e *Engine) Save(_ context.Context, w io.Writer, refs []string) error {
	var list []map[string][]string
	for _, ref := range refs {
		img, err := e.Image(ref)
		if err != nil {
			return fmt.Errorf("save: %w", err)
		}
		list = append(list, map[string][]string{"RepoTags": img.Names})
	}
	b := encode(list)
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Name: "manifest.json", Size: int64(len(b)), Mode: 0o644}); err != nil {
		return err
	}
	if _, err := t.Write(b); err != nil {
		return err
	}
	return t.Close()
}

// Import accepts any nonempty input.
func (e *Engine) Import(_ context.Context, r io.Reader, o oci.ImportOptions, report func(image.Progress)) (*store.Image, error) {
	report(image.Progress{Step: "layer", Message: "unpack"})
	if n, err := io.Copy(io.Discard, r); err != nil || n == 0 {
		return nil, fmt.Errorf("import: %w: empty", oci.ErrArchive)
	}
	for _, c := range o.Changes {
		if !strings.HasPrefix(c, "CMD ") {
			return nil, fmt.Errorf("import: %w %q", oci.ErrChange, c)
		}
	}
	return e.come([]string{cmp.Or(o.Name, "imported:1")}), nil
}

// Pull succeeds for every image except names that end in "/none". Names that end in "/private" need
// the login of "me".
func (e *Engine) Pull(_ context.Context, ref, _ string, auth *oci.Auth, report func(image.Progress)) (*store.Image, oci.Remote, error) {
	r, err := store.ParseReference(ref)
	if err == nil {
		err = r.Check()
	}
	switch {
	case err != nil:
		return nil, oci.Remote{}, fmt.Errorf("pull %s: %w", ref, oci.ErrReference)
	case strings.HasSuffix(r.Name, "/none"):
		return nil, oci.Remote{}, failure.Wrap(failure.NotFound, fmt.Errorf("pull %s: %w: %w", ref, oci.ErrRegistry, fs.ErrNotExist), "")
	case strings.HasSuffix(r.Name, "/private") && (auth == nil || auth.Username != "me" || auth.Password != "secret"):
		return nil, oci.Remote{}, failure.Wrap(failure.Forbidden, fmt.Errorf("pull %s: %w: %w", ref, oci.ErrRegistry, fs.ErrPermission), "log in as yourself (docker login), or with --username and --password-stdin")
	}
	report(image.Progress{Step: "layer", Name: "0123456789ab", Message: "done"})
	img := e.come([]string{r.Name + ":" + cmp.Or(r.Version, "latest")})
	return img, oci.Remote{Name: img.Names[0], Digest: img.Digest}, nil
}

// Resolve returns the same digest for every image.
func (*Engine) Resolve(_ context.Context, ref string, _ *oci.Auth) (string, error) {
	r, err := store.ParseReference(ref)
	switch {
	case err != nil:
		return "", fmt.Errorf("resolve %s: %w", ref, oci.ErrReference)
	case strings.HasSuffix(r.Name, "/none"):
		return "", failure.Wrap(failure.NotFound, fmt.Errorf("resolve %s: %w: %w", ref, oci.ErrRegistry, fs.ErrNotExist), "")
	}
	return r.Name + "@sha256:" + strings.Repeat("12", 32), nil
}

// AttachSignature checks the arguments and stores nothing.
func (*Engine) AttachSignature(_ context.Context, ref string, payload []byte, sig string, _ *oci.Auth) error {
	if !strings.Contains(ref, "@sha256:") || len(payload) == 0 || sig == "" {
		return fmt.Errorf("sign %s: %w", ref, oci.ErrReference)
	}
	return nil
}

// Push sends nothing. A registry whose name begins with "unreachable" cannot be reached.
func (e *Engine) Push(_ context.Context, ref, to string, _ *oci.Auth, o oci.PushOptions, report func(image.Progress)) (oci.Remote, error) {
	img, err := e.Image(ref)
	if err != nil {
		return oci.Remote{}, fmt.Errorf("push %s: %w", ref, err)
	}
	to = cmp.Or(to, img.Names[0])
	if strings.HasPrefix(to, "unreachable") {
		return oci.Remote{}, fmt.Errorf("push %s: %w cannot be reached", to, oci.ErrRegistry)
	}
	report(image.Progress{Step: "push", Name: to})
	return oci.Remote{Name: to, Digest: img.Digest}, nil
}
