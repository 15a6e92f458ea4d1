package channel

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnviron(t *testing.T) {
	m := Invocation{
		Function: "f", ID: "i", Tenant: "t", DeadlineMS: 5, Request: Request{
			Method: "GET", Path: "/p", Query: "q=1",
			Headers: [][2]string{
				{"Content-Type", "text/plain"},
				{"X-A", "1"},
				{"Proxy", "http://evil"},
				{"x-a", "2"},
				{"X_A", "3"},
				{"bad name", "x"},
				{"", "x"},
				{"X-Nul", "a\x00b"},
			},
		},
	}
	got, err := Environ(&m)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"FRE_FUNCTION=f", "FRE_ID=i", "FRE_TENANT=t", "FRE_DEADLINE_MS=5", "FRE_METHOD=GET", "FRE_PATH=/p", "FRE_QUERY=q=1",
		"HTTP_CONTENT_TYPE=text/plain", "HTTP_X_A=1, 2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, m := range map[string]Invocation{
		"NUL in the path": {Request: Request{Path: "/\x00"}},
		"too long":        {Request: Request{Headers: [][2]string{{"a", strings.Repeat("x", MaxEnviron)}}}},
	} {
		if env, err := Environ(&m); err == nil {
			t.Errorf("%s: got %d variables, want an error", name, len(env))
		}
	}
}
