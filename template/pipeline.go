package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// MaxSteps is the most functions in a pipeline.
const MaxSteps = 16

// stepPattern matches a step of a pipeline; api/template.schema.json repeats it.
var stepPattern = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}(@[a-z0-9][a-z0-9-]{0,62})?$`)

// pipeline reads the steps.
func (d *decoder) pipeline(dst *[]string) value {
	steps := d.strings(dst, item{patternSchema(stepPattern), func(s string) error {
		if !stepPattern.MatchString(s) {
			return fmt.Errorf("bad step %q: write a function of the same tenant, NAME or NAME@REVISION", s)
		}
		return nil
	}})
	return value{steps.schema.with("minItems", 1).with("maxItems", MaxSteps), func(n ast.Node, path string) {
		if list, ok := n.(*ast.SequenceNode); ok && (len(list.Values) == 0 || len(list.Values) > MaxSteps) {
			d.errorf(n, "%s has %d steps: name 1 to %d functions", path, len(list.Values), MaxSteps)
			return
		}
		steps.read(n, path)
	}}
}

// ofPipelines are the keys allowed in the template of a pipeline, including the keys below.
var ofPipelines = []string{"id", "version", "pipeline", "tenant", "access", "cors", "events", "triggers", "resources"}

// pipelineRelations refuses keys that only a program needs.
func (d *decoder) pipelineRelations(t *Template, fail func(path, format string, args ...any)) {
	for _, f := range d.fields(&Template{}) {
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

// CheckSteps checks the steps of a pipeline in an image's configuration.
func CheckSteps(steps []string) error {
	if n := len(steps); n == 0 || n > MaxSteps {
		return fmt.Errorf("pipeline has %d steps: must be from 1 to %d", n, MaxSteps)
	}
	for _, step := range steps {
		if !stepPattern.MatchString(step) {
			return fmt.Errorf("pipeline: %q is no step", step)
		}
	}
	return nil
}
