package function_test

import (
	"net/url"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/function"
)

// FuzzQuery: what net/url takes apart comes out the same, and nothing is left out.
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
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q:\n%s", query, diff)
			}
		}
	})
}

func TestHeader(t *testing.T) {
	h := function.Header{{"A", "1"}, {"b", "2"}, {"a", "3"}}
	if diff := cmp.Diff([]string{"1, 3", "", "2"}, []string{h.Get("a"), h.Get("c"), h.Get("B")}); diff != "" {
		t.Error(diff)
	}
}
