package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/fre-engine/fre/template"
)

func TestHandlerFile(t *testing.T) {
	c := &codeTree{entries: map[string]codeEntry{"index.php": {}, "lib/app.v2.php": {}, "main.rb": {}, "lib/app.rb": {}, "index.html": {}}}
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
		err := c.checkHandler(&template.Template{Runtime: test.runtime, Handler: test.handler}, "")
		var f *template.FieldError
		if test.want == "" && err != nil || test.want != "" && (!errors.As(err, &f) || !strings.Contains(f.Message, test.want)) {
			t.Errorf("%s %s: got %v, want %q", test.runtime, test.handler, err, test.want)
		}
	}
}
