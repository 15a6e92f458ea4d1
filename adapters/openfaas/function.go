package openfaas

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/openfaas/faas-provider/types"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// list answers GET /system/functions.
func (h *handler) list(w http.ResponseWriter, r *request) error {
	tenant, err := r.tenant(r.URL.Query().Get("namespace"))
	if err != nil {
		return err
	}
	out := []types.FunctionStatus{}
	for _, f := range h.Engine.Functions() {
		if f.Config.Tenant != tenant {
			continue
		}
		s, err := h.statusOf(f)
		if err != nil {
			return err
		}
		out = append(out, s)
	}
	return reply(w, out)
}

// describe answers GET /system/function/{name}?usage=1.
func (h *handler) describe(w http.ResponseWriter, r *request) error {
	q := r.URL.Query()
	f, err := h.function(r, r.PathValue("name"), q.Get("namespace"))
	if err != nil {
		return err
	}
	s, err := h.statusOf(f)
	if err != nil {
		return err
	}
	if usage, _ := strconv.ParseBool(q.Get("usage")); usage {
		s.Usage = h.usage(f)
	}
	return reply(w, s)
}

// usage returns the current memory of the function's sandboxes, and the sum of each sandbox's
// average CPU use since the sandbox's start, in thousandths of a CPU.
func (h *handler) usage(f *engine.Function) *types.FunctionUsage {
	var u types.FunctionUsage
	for _, b := range h.Engine.Sandboxes(false) {
		if b.Function != f.Name {
			continue
		}
		s, err := h.Engine.Stats(b.ID)
		if err != nil {
			continue // ended meanwhile
		}
		u.TotalMemoryBytes += float64(s.MemoryBytes)
		if age := time.Since(b.Created); age > 0 {
			u.CPU += 1000 * s.CPU.Seconds() / age.Seconds()
		}
	}
	return &u
}

// statusOf returns a function in OpenFaaS's format: the deployment's request and the current
// state.
func (h *handler) statusOf(f *engine.Function) (types.FunctionStatus, error) {
	plain, tenant, err := template.SplitName(f.Name)
	if err != nil {
		return types.FunctionStatus{}, err
	}
	d, err := deploymentOf(&f.Config, plain, f.ImageRef)
	if err != nil {
		return types.FunctionStatus{}, err
	}
	labels, annotations := map[string]string{"faas_function": plain}, map[string]string{}
	if d.Labels != nil {
		maps.Copy(labels, *d.Labels)
	}
	if d.Annotations != nil {
		annotations = *d.Annotations
	}
	s := types.FunctionStatus{
		Name: plain, Namespace: namespaceOf(tenant), Image: d.Image, EnvProcess: d.EnvProcess, EnvVars: d.EnvVars, Secrets: d.Secrets, Labels: &labels, Annotations: &annotations,
		Limits: d.Limits, Requests: d.Requests, ReadOnlyRootFilesystem: d.ReadOnlyRootFilesystem,
		InvocationCount: float64(f.Invocations), Replicas: uint64(f.Config.Instances.Min), CreatedAt: f.Deployed,
	}
	if f.Config.Instances.Isolation == template.IsolationEvent { // every event has a fresh sandbox
		s.Replicas, s.AvailableReplicas = 1, 1
		return s, nil
	}
	revisions, err := h.Engine.Revisions(f.Name)
	if err != nil {
		return s, err
	}
	for _, v := range revisions.Revisions {
		if !v.Resting {
			s.AvailableReplicas += uint64(v.Instances)
		}
	}
	return s, nil
}

// links returns the links to add to the image: OpenFaaS's path of secrets.
func (d *deployment) links() map[string]string {
	if len(d.Secrets) == 0 {
		return nil
	}
	return map[string]string{"var/openfaas/secrets": "/run/secrets"}
}

// dropPulled removes the image that a failed deployment has pulled.
func (h *handler) dropPulled(ctx context.Context, d *deployment) {
	if d.drop == nil {
		return
	}
	if err := d.drop(ctx); err != nil {
		h.Log.WarnContext(ctx, "image not removed", "image", d.Image, "error", err)
	}
}

// deploy answers POST and PUT /system/functions. PUT requires an existing function.
func (h *handler) deploy(w http.ResponseWriter, r *request) (err error) {
	var req types.FunctionDeployment
	if err := decode(w, r, &req); err != nil {
		return err
	}
	r.on = req.Service
	tenant, err := r.tenant(req.Namespace)
	if err != nil {
		return err
	}
	d, err := newDeployment(h.Engine.ParseTemplate, req, tenant)
	if err != nil {
		return err
	}
	release := sync.OnceFunc(h.Engine.Hold())
	defer release()
	name := template.QualifiedName(d.Service, tenant)
	if _, err := h.Engine.Function(name); err != nil && r.Method == http.MethodPut {
		return err
	}
	defer func() {
		if err != nil {
			release() // Hold protects the image from removal
			h.dropPulled(context.WithoutCancel(r.Context()), d)
		}
	}()
	img, made, err := h.imageFor(r, d)
	if err != nil {
		return err
	}
	if made != nil {
		defer h.drop(r.Context(), made.Digest)
	}
	img, err = h.Engine.Reconfigure(r.Context(), img, d.Service, d.links(), func(c *image.Config) error { return d.configure(c, made == nil) })
	if err != nil {
		return err
	}
	if err := h.deployImage(r, name, tenant, img); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// deployImage deploys img as the function's next revision. If the engine refuses the deployment,
// deployImage removes the image.
func (h *handler) deployImage(r *request, name, tenant string, img *store.Image) error {
	_, err := h.Engine.Deploy(r.Context(), name, img, engine.DeployOptions{Replace: true, Within: tenant, By: r.id.Who})
	if err != nil {
		h.drop(r.Context(), img.Digest)
	}
	return err
}

// drop removes an image that has no name and is unused. The images made by this package have no
// name.
func (h *handler) drop(ctx context.Context, digest store.Digest) {
	img, err := h.Engine.Image(string(digest))
	if err != nil || len(img.Names) > 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	_, err = h.Engine.RemoveImage(ctx, string(digest), build.RemoveOptions{})
	if errors.Is(err, store.ErrInUse) { // perhaps by an event in progress
		err = h.Engine.DropImage(digest)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, engine.ErrClosed) {
		h.Log.WarnContext(ctx, "image not removed", "image", digest, "error", err)
	}
}

// remove answers DELETE /system/functions.
func (h *handler) remove(w http.ResponseWriter, r *request) error {
	var req types.DeleteFunctionRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	namespace := req.Namespace
	if namespace == "" {
		namespace = r.URL.Query().Get("namespace")
	}
	f, err := h.function(r, req.FunctionName, namespace)
	if err != nil {
		return err
	}
	revisions, err := h.Engine.Revisions(f.Name)
	if err != nil {
		return err
	}
	if err := h.Engine.RemoveFunction(r.Context(), f.Name); err != nil {
		return err
	}
	for _, v := range revisions.Revisions {
		h.drop(r.Context(), v.Image)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// scalable refuses a number of instances that the function cannot keep.
func scalable(f *engine.Function, replicas uint64) error {
	in := f.Config.Instances
	switch {
	case len(f.Traffic.Weights) != 1 || len(f.Traffic.Headers) > 0:
		return &api.Error{Code: api.CodeInUse, Message: "the events of " + f.Name + " are split among revisions", Next: "end the split first (fre function split)"}
	case in.Isolation == template.IsolationEvent:
		return badRequest("%s has a fresh sandbox for each event, and no replicas", f.Name)
	case replicas > uint64(in.Max):
		return badRequest("%d replicas are above the function's limit of %d; deploy the function with the label %s", replicas, in.Max, labelMax)
	}
	return nil
}

// redeploy deploys the function's image with another number of instances to keep.
func (h *handler) redeploy(r *request, f *engine.Function, instances int) error {
	img, err := h.Engine.Image(string(f.Image))
	if err != nil {
		return err
	}
	plain, tenant, err := template.SplitName(f.Name)
	if err != nil {
		return err
	}
	img, err = h.Engine.Reconfigure(r.Context(), img, plain, nil, func(c *image.Config) error {
		c.Tenant, c.Instances.Min = tenant, instances
		return nil
	})
	if err != nil {
		return err
	}
	return h.deployImage(r, f.Name, tenant, img)
}

// scale answers POST /system/scale-function/{name}: sets the number of instances to keep. The
// handler deploys a revision of the same image, so no event is lost, and removes the idle
// instances of the former revision.
func (h *handler) scale(w http.ResponseWriter, r *request) error {
	var req types.ScaleServiceRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	if req.ServiceName != "" && req.ServiceName != r.PathValue("name") {
		return badRequest("the path says %s, the request %s", r.PathValue("name"), req.ServiceName)
	}
	f, err := h.function(r, r.PathValue("name"), cmp.Or(req.Namespace, r.URL.Query().Get("namespace")))
	if err != nil {
		return err
	}
	if err := scalable(f, req.Replicas); err != nil {
		return err
	}
	defer h.Engine.Hold()()
	if err := h.redeploy(r, f, int(req.Replicas)); err != nil {
		return err
	}
	// The former revision has the same code, so a rollback or resting instances are useless.
	err = h.Engine.RemoveRevision(r.Context(), f.Name, strconv.Itoa(f.Revision))
	var unknown *engine.UnknownError
	if err != nil && !errors.Is(err, engine.ErrRevisionUsed) && !errors.As(err, &unknown) {
		return err
	}
	h.drop(r.Context(), f.Image)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// buildIn creates a directory, calls fill to fill the directory, and builds the directory.
func (h *handler) buildIn(ctx context.Context, fill func(dir *os.Root) error, report func(image.Progress)) (_ *store.Image, err error) {
	path, err := h.Scratch()
	if err != nil {
		return nil, fmt.Errorf("make scratch directory: %w", err)
	}
	defer func() { err = errors.Join(err, linux.RemoveAll(path)) }()
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := fill(dir); err != nil {
		return nil, err
	}
	t, err := h.Engine.Template(dir)
	if err != nil {
		return nil, err
	}
	img, _, err := h.Engine.Build(ctx, dir, t, report)
	return img, err
}

// writeTemplate writes a template as JSON, a subset of YAML.
func writeTemplate(dir *os.Root, spec map[string]any) error {
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("template: %w", err)
	}
	return dir.WriteFile(template.FileName, text, 0o644)
}
