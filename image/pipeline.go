package image

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// pipelineFile lists the steps in the image of a pipeline.
const pipelineFile = codePrefix + "/pipeline"

// buildPipeline makes the image of a template with steps. A pipeline has no lock.
func (b *Builder) buildPipeline(ctx context.Context, t *template.Template, report func(Progress)) (*store.Image, error) {
	defer b.Store.Hold()()
	w, err := b.Store.Create()
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	if err := w.File(pipelineFile, 0o644, systemTime, strings.NewReader(strings.Join(t.Pipeline, "\n")+"\n")); err != nil {
		return nil, err
	}
	tree, err := w.Commit(ctx)
	if err != nil {
		return nil, err
	}
	c := Config{
		Protocol: ProtocolPipeline, Pipeline: t.Pipeline, Tenant: t.Tenant, Instances: t.Instances, Resources: t.Resources, Network: t.Network,
		Access: t.Access, CORS: t.CORS, Triggers: t.Triggers, Labels: OptionsOf(ctx).Labels,
	}
	if t.Events != template.DefaultEvents() {
		c.Events = &t.Events
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	report(Progress{Step: "link", Name: t.ID + ":" + t.Version})
	img, err := b.Store.PutImage(ctx, store.Manifest{Name: t.ID, Version: t.Version, Parts: []store.Part{{Kind: "pipeline", Name: t.ID, Tree: tree}}, Config: raw})
	if err == nil {
		report(Progress{Step: "link", Name: t.ID + ":" + t.Version, Done: img.Size, Unit: UnitBytes, End: true})
	}
	return img, err
}
