package native

import (
	"errors"
	"slices"
	"testing"

	"github.com/fre-engine/fre/template"
)

// TestCommand: A handler is a program within the code.
func TestCommand(t *testing.T) {
	for handler, want := range map[string]string{
		"clock": "/function/clock", "bin/clock": "/function/bin/clock", "./run.sh": "/function/run.sh",
		"": "", ".": "", "/bin/sh": "", "../x": "", "a/../../x": "", "a\x00": "",
	} {
		args, _, err := Runtime{}.Command(&template.Template{Handler: handler})
		var f *template.FieldError
		if want == "" && !errors.As(err, &f) || want != "" && (err != nil || !slices.Equal(args, []string{want})) {
			t.Errorf("%q: %q, %v", handler, args, err)
		}
	}
}
