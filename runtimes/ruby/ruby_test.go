package ruby

import (
	"errors"
	"testing"

	"github.com/fre-engine/fre/template"
)

func TestCommand(t *testing.T) {
	for handler, ok := range map[string]bool{
		"main.handle": true, "lib/my-app.v2.handle": true, "main.App.handle": true, "main.App::Inner.handle!": true, "größe.größe": true,
		"": false, "main": false, "main.": false, ".handle": false, "../main.handle": false, "/main.handle": false,
		"main.a-b": false, "main.App::": false, "main.1a": false, "a/../../b.handle": false,
	} {
		_, _, err := Runtime{}.Command(&template.Template{Handler: handler})
		var f *template.FieldError
		if ok != (err == nil) || !ok && !errors.As(err, &f) {
			t.Errorf("%q: %v", handler, err)
		}
	}
}
