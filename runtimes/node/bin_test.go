package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPrograms: The programs of top-level packages get links, and a program outside of its package
// gets none.
func TestPrograms(t *testing.T) {
	got, err := programLinks([]byte(`{"lockfileVersion": 3, "packages": {
		"": {"bin": {"own": "x"}},
		"node_modules/typescript": {"bin": {"tsc": "bin/tsc", "tsserver": "./bin/tsserver"}},
		"node_modules/@scope/one": {"bin": "cli.js"},
		"node_modules/a/node_modules/b": {"bin": {"b": "b.js"}},
		"node_modules/evil": {"bin": {"up": "../../etc/passwd", "abs": "/bin/sh", "../x": "x", "a/b": "x", "dots": ".."}}
	}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"tsc": "../typescript/bin/tsc", "tsserver": "../typescript/bin/tsserver", "one": "../@scope/one/cli.js"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := programLinks([]byte(`{"packages": {"node_modules/a": {"bin": 7}}}`)); err == nil {
		t.Error("a number for bin: no error")
	}
}
