package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"

	"github.com/goccy/go-yaml/ast"

	"github.com/fre-engine/fre/store"
)

// ProtocolPipeline marks functions without a program that call other functions in sequence
// (Config.Pipeline). Their image is one small file with the steps.
const ProtocolPipeline Protocol = "pipeline"

// MaxSteps is the most functions in a pipeline.
const MaxSteps = 16

// stepPattern matches a step of a pipeline; api/template.schema.json repeats it.
var stepPattern = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}(@[a-z0-9][a-z0-9-]{0,62})?$`)

// pipelineFile lists the steps in the image of a pipeline.
const pipelineFile = codePrefix + "/pipeline"

// pipeline reads the steps.
func (d *decoder) pipeline(dst *[]string) func(ast.Node, string) {
	read := d.strings(dst, func(s string) error {
		if !stepPattern.MatchString(s) {
			return fmt.Errorf("bad step %q: write a function of the same tenant, NAME or NAME@REVISION", s)
		}
		return nil
	})
	return func(n ast.Node, path string) {
		if list, ok := n.(*ast.SequenceNode); ok && (len(list.Values) == 0 || len(list.Values) > MaxSteps) {
			d.errorf(n, "%s has %d steps: name 1 to %d functions", path, len(list.Values), MaxSteps)
			return
		}
		read(n, path)
	}
}

// ofPipelines are the keys allowed in the template of a pipeline, including the keys below.
var ofPipelines = []string{"id", "version", "pipeline", "tenant", "access", "cors", "events", "triggers", "resources"}

// pipelineRelations refuses keys that only a program needs.
func (d *decoder) pipelineRelations(t *Template, fail func(path, format string, args ...any)) {
	for _, f := range d.fields(t) {
		if _, ok := d.at[f.key]; ok && !slices.Contains(ofPipelines, f.key) {
			fail(f.key, "%s is not for pipelines: a pipeline has steps only", f.key)
		}
		if f.key != "resources" {
			continue
		}
		for _, below := range f.below {
			path := join(f.key, below.key)
			if _, ok := d.at[path]; ok && below.key != "timeout" {
				fail(path, "%s is not for pipelines: set the field in the template of each step", path)
			}
		}
	}
	for i, step := range t.Pipeline {
		if name, _, _ := strings.Cut(step, "@"); name == t.ID {
			fail(fmt.Sprintf("pipeline[%d]", i), "pipeline[%d] is the pipeline itself: an endless cycle", i)
		}
	}
}

// checkPipeline is the part of Check about pipelines.
func (c *Config) checkPipeline() error {
	switch n := len(c.Pipeline); {
	case c.Protocol != ProtocolPipeline && n > 0:
		return errors.New("pipeline: has steps and a program")
	case c.Protocol != ProtocolPipeline:
		return nil
	case n == 0 || n > MaxSteps:
		return fmt.Errorf("pipeline has %d steps: must be from 1 to %d", n, MaxSteps)
	case len(c.Args) > 0 || c.Instances.Min > 0:
		return errors.New("pipeline: has a program and steps")
	}
	for _, step := range c.Pipeline {
		if !stepPattern.MatchString(step) {
			return fmt.Errorf("pipeline: %q is no step", step)
		}
	}
	return nil
}

// buildPipeline makes the image of a template with steps. A pipeline has no lock.
func (b *Builder) buildPipeline(ctx context.Context, t *Template, report func(Event)) (*store.Image, error) {
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
	if t.Events != DefaultEvents() {
		c.Events = &t.Events
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	report(Event{Step: "link", Name: t.ID + ":" + t.Version})
	img, err := b.Store.PutImage(ctx, store.Manifest{Name: t.ID, Version: t.Version, Parts: []store.Part{{Kind: "pipeline", Name: t.ID, Tree: tree}}, Config: raw})
	if err == nil {
		report(Event{Step: "link", Name: t.ID + ":" + t.Version, Done: img.Size, Unit: UnitBytes, End: true})
	}
	return img, err
}
