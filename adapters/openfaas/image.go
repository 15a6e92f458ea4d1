package openfaas

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// variableDirectory tells the adapter the working directory of an ordinary image's program. The
// program does not see the variable.
const variableDirectory = "FRE_HTTP_DIR="

// imageFor returns the image for a deployment, local or pulled. If the image is ordinary,
// imageFor builds a function's image without a name: the entry point as an HTTP server on port
// 8080. made is this image, or nil; the caller drops made after use.
func (h *handler) imageFor(r *request, d *deployment) (img, made *store.Image, err error) {
	img, ref, err := h.findImage(r, d)
	if err != nil {
		return nil, nil, err
	}
	c, err := image.ConfigOf(img)
	if err != nil {
		return nil, nil, err
	}
	if c.Protocol != image.ProtocolNone {
		return img, nil, nil
	}
	made, err = h.serverOf(r.Context(), d, ref, &c)
	return made, made, err
}

// findImage returns the deployment's image, local or pulled, and the image's name for builds.
// Another tenant's image is invisible to a deployment, even if the caller may see all tenants: a
// tenant can build an image under any free name, even under a name that other tenants expect
// from the registry. findImage then pulls the image by digest, so the local name stays with its
// tenant.
func (h *handler) findImage(r *request, d *deployment) (img *store.Image, ref string, err error) {
	may := func(img *store.Image) bool {
		of := build.ImageTenant(img)
		return of == "" || of == d.tenant
	}
	ref = familiar(d.Image)
	pull := d.Image
	if img, err = h.Engine.Image(ref); err == nil && !may(img) {
		if pull, err = h.Engine.Resolve(r.Context(), d.Image, nil); err != nil {
			if of := build.ImageTenant(img); r.id.Of(of) { // only shown to a caller with rights to the other tenant
				err = fmt.Errorf("the image %s belongs to tenant %s, not to %s: build the image for the second tenant, or under another name: %w", ref, of, d.tenant, err)
			}
			return nil, "", err
		}
		ref = familiar(pull)
		img, err = h.Engine.Image(ref)
	}
	if errors.Is(err, fs.ErrNotExist) {
		img, d.drop, err = h.Engine.PullFor(r.Context(), d.tenant, pull)
	}
	if errors.Is(err, build.ErrOthersImage) || err == nil && !may(img) {
		err = notFound("no image %s of tenant %s", d.Image, d.tenant)
	}
	return img, ref, err
}

// serverOf builds a function's image from an ordinary image.
func (h *handler) serverOf(ctx context.Context, d *deployment, ref string, c *image.Config) (*store.Image, error) {
	own := c.AsContainer()
	command := slices.Concat(own.Entrypoint, own.Cmd)
	if c.Container == nil || len(command) == 0 {
		return nil, badRequest("the image %s has no command: set an ENTRYPOINT or CMD that serves HTTP on port 8080", d.Image)
	}
	id, err := madeName()
	if err != nil {
		return nil, err
	}
	spec, err := d.template()
	if err != nil {
		return nil, err
	}
	spec["id"], spec["base"], spec["handler"] = id, "oci:"+ref, commandLine(command)
	delete(spec, "secrets") // checked at deployment
	img, err := h.buildIn(ctx, func(dir *os.Root) error { return writeTemplate(dir, spec) }, nil)
	if err != nil {
		return nil, err
	}
	out, err := h.Engine.Reconfigure(ctx, img, d.Service, nil, func(c *image.Config) error {
		c.Env = append(slices.Clip(c.Env), variableDirectory+cmp.Or(own.WorkingDir, "/"))
		return nil
	})
	if untag := h.untag(ctx, img); untag != nil {
		err = errors.Join(err, untag)
	}
	return out, err
}

// untag removes the generated name of a build, and the image if the name was the last one.
func (h *handler) untag(ctx context.Context, img *store.Image) error {
	_, err := h.Engine.RemoveImage(context.WithoutCancel(ctx), img.Name+":"+img.Version, build.RemoveOptions{})
	return err
}

// familiar returns a reference in the store's form: without the default registry.
func familiar(ref string) string {
	r, err := store.ParseReference(ref)
	if err != nil {
		return ref // Pull reports the error
	}
	r.Name = oci.Familiar(r.Name)
	return r.String()
}

// madeName returns a unique template id.
func madeName() (string, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make up a name: %w", err)
	}
	return "openfaas-" + hex.EncodeToString(b[:]), nil
}

// commandLine quotes words for the parser of the runtime http.
func commandLine(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
