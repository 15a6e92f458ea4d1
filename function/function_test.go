package function_test

import (
	"io/fs"
	"net/url"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fre-engine/fre/function"
)

// FuzzQuery: if net/url parses a query, Query returns the same values. All values are UTF-8.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{"", "a=1&a=2&b", "a=%zz&%=%4", "a+b=%20", "&&=&=x", "%ff=%e2%28", "a=1;b=2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		got := function.Event{RawQuery: query}.Query()
		for name, values := range got {
			for _, s := range append(values, name) {
				if !utf8.ValidString(s) {
					t.Errorf("%q: %q is not UTF-8", query, s)
				}
			}
		}
		want, err := url.ParseQuery(query)
		for name, values := range want {
			for _, s := range append(values, name) {
				if !utf8.ValidString(s) {
					return
				}
			}
		}
		if err == nil {
			if !reflect.DeepEqual(want, got) {
				t.Errorf("%q: got %q, want %q", query, got, want)
			}
		}
	})
}

func TestHeader(t *testing.T) {
	h := function.Header{{"A", "1"}, {"b", "2"}, {"a", "3"}}
	if got, want := []string{h.Get("a"), h.Get("c"), h.Get("B")}, []string{"1, 3", "", "2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestModule: Module holds every file that a build of a function needs: all but FRE's own program.
func TestModule(t *testing.T) {
	err := fs.WalkDir(os.DirFS("."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if p == "adapter" {
				return fs.SkipDir
			}
			return err
		}
		if source := path.Ext(p) == ".go" && !strings.HasSuffix(p, "_test.go"); !source && p != "go.mod" && p != "go.sum" {
			return nil
		}
		want, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if got, err := function.Module.ReadFile(p); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", p, len(got), err, len(want))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
