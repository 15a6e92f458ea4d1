package php

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/template"
)

func TestCommand(t *testing.T) {
	for handler, ok := range map[string]bool{
		"index.handle": true, "src/my-app.v2.handle": true, `index.App\Http\handle`: true, "index.App::handle": true, `index.App\Kernel::handle`: true, "größe.größe": true,
		"": false, "index": false, "index.": false, ".handle": false, "../index.handle": false, "/index.handle": false,
		"index.a-b": false, "index.App::": false, `index.\handle`: false, "index.1a": false, "a/../../b.handle": false,
	} {
		_, _, err := Runtime{}.Command(&template.Template{Handler: handler})
		var f *template.FieldError
		if ok != (err == nil) || !ok && !errors.As(err, &f) {
			t.Errorf("%q: %v", handler, err)
		}
	}
	_, _, err := Runtime{}.Command(&template.Template{Handler: "index.handle", Instances: template.Instances{Concurrency: 2}})
	var f *template.FieldError
	if !errors.As(err, &f) || f.Field != "instances.concurrency" {
		t.Errorf("two events at once: %v", err)
	}
}

// TestExtensions: An extension is loaded after its dependencies.
func TestExtensions(t *testing.T) {
	got := string(extensions([]string{"usr/lib/php/20220829/dom.so", "usr/lib/php/20220829/mysqli.so", "usr/lib/php/20220829/mysqlnd.so", "usr/lib/php/20220829/opcache.so", "usr/lib/php/20220829/xml.so"}))
	if diff := cmp.Diff("extension=mysqlnd\nextension=xml\nextension=dom\nextension=mysqli\nzend_extension=opcache\n", got); diff != "" {
		t.Error(diff)
	}
}

// TestVersion: The version of PHP comes from the name of the base's interpreter.
func TestVersion(t *testing.T) {
	file := &fstest.MapFile{}
	if v, err := version(fstest.MapFS{"usr/bin/php-config": file, "usr/bin/php8.4": file}); v != "8.4" || err != nil {
		t.Errorf("got %q, %v", v, err)
	}
	if v, err := version(fstest.MapFS{"usr/bin/python3": file}); err == nil {
		t.Errorf("got %q of a base without PHP", v)
	}
}
