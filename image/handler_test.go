package image_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/php"
	"github.com/fre-engine/fre/runtimes/ruby"
	"github.com/fre-engine/fre/template"
)

// TestHandlerFile: A build refuses a handler whose file is missing in the code.
func TestHandlerFile(t *testing.T) {
	code := image.CodeFilesOf("index.php", "lib/app.v2.php", "main.rb", "lib/app.rb", "index.html")
	checkers := map[string]image.HandlerChecker{"php": php.Runtime{}, "ruby": ruby.Runtime{}}
	for _, test := range []struct{ runtime, handler, want string }{
		{"php", "index.handle", ""},
		{"php", `index.App\Http::handle`, ""},
		{"php", "lib/app.v2.handle", ""},
		{"php", "main.handle", "no main.php in the code"},
		{"php", "lib/missing.handle", "no lib/missing.php in the code"},
		{"ruby", "main.handle", ""},
		{"ruby", "main.App.handle", ""},
		{"ruby", "lib/app.App::Inner.handle", ""},
		{"ruby", "index.handle", "no index.rb in the code"},
		{"ruby", "Missing.App.handle", "no Missing.rb in the code"},
	} {
		err := checkers[test.runtime].CheckHandler(&template.Template{Runtime: test.runtime, Handler: test.handler}, code)
		var f *template.FieldError
		if test.want == "" && err != nil || test.want != "" && (!errors.As(err, &f) || !strings.Contains(f.Message, test.want)) {
			t.Errorf("%s %s: got %v, want %q", test.runtime, test.handler, err, test.want)
		}
	}
}
