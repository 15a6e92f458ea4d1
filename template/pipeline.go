package template

import (
	"fmt"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// MaxSteps is the most functions in a pipeline.
const MaxSteps = 16

// stepPattern matches a step of a pipeline; api/template.schema.json repeats it.
var stepPattern = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}(@[a-z0-9][a-z0-9-]{0,62})?$`)

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
