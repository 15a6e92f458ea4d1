package runtimes_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/java"
	"github.com/fre-engine/fre/runtimes/native"
	"github.com/fre-engine/fre/runtimes/node"
	"github.com/fre-engine/fre/runtimes/php"
	"github.com/fre-engine/fre/runtimes/python"
	"github.com/fre-engine/fre/runtimes/ruby"
	"github.com/fre-engine/fre/template"
)

// TestInterpreter: A parked interpreter starts with the function's own command and environment, or
// not at all.
func TestInterpreter(t *testing.T) {
	for _, test := range []struct {
		name      string
		runtime   image.Runtime
		handler   string
		variables map[string]bool // whether a parked interpreter can adopt the variable later
	}{
		{"python", python.Runtime{}, "main.handle", map[string]bool{
			"PYTHONPATH=/x": true, "TZ=Asia/Tokyo": true, "PYTHONHASHSEED=1": false, "LANG=C": false,
		}},
		{"node", node.Runtime{}, "index.handle", map[string]bool{
			"NODE_ENV=test": true, "TZ=Asia/Tokyo": true, "NODE_OPTIONS=--x": false, "UV_THREADPOOL_SIZE=1": false, "LC_ALL=C": false,
		}},
		{"java", java.Runtime{}, "com.example.Handler.handle", map[string]bool{
			"TZ=Asia/Tokyo": true, "PATH=/bin": true, "JAVA_TOOL_OPTIONS=-Xss2m": false, "_JAVA_OPTIONS=-Xss2m": false, "LC_ALL=C": false,
		}},
		{"php", php.Runtime{}, "index.handle", map[string]bool{
			"TZ=Asia/Tokyo": true, "A=b": true, "PHPRC=/x": false, "PHP_INI_SCAN_DIR=/x": false, "USE_ZEND_ALLOC=0": false, "LANG=C": false,
		}},
		{"ruby", ruby.Runtime{}, "main.handle", map[string]bool{
			"TZ=Asia/Tokyo": true, "GEM_HOME=/x": true, "RUBYLIB=/x": false, "RUBYOPT=-w": false, "MALLOC_ARENA_MAX=2": false,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tmpl := &template.Template{Handler: test.handler}
			args, env, err := test.runtime.Command(tmpl)
			if err != nil {
				t.Fatal(err)
			}
			s := test.runtime.Parked(tmpl, env)
			if s == nil {
				t.Fatal("none for the environment that every function has")
			}
			if diff := cmp.Diff(args[:len(args)-1], s.Args); diff != "" {
				t.Error(diff)
			}
			for v, want := range test.variables {
				name, _, _ := strings.Cut(v, "=")
				changed := slices.DeleteFunc(slices.Clone(env), func(old string) bool { return strings.HasPrefix(old, name+"=") })
				if s := test.runtime.Parked(tmpl, append(changed, v)); (s != nil) != want {
					t.Errorf("%s: a parked interpreter %v, want %v", v, s != nil, want)
				}
			}
		})
	}
	if s := (native.Runtime{}).Parked(&template.Template{Handler: "run"}, nil); s != nil {
		t.Errorf("native: %+v, want none: there is no interpreter to start ahead", s)
	}
}
