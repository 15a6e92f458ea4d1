package docker

import (
	"testing"

	"github.com/fre-engine/fre/engine/live"
)

// TestIsNamed: the listed name of a container finds this container only.
func TestIsNamed(t *testing.T) {
	boxes := []*live.Sandbox{
		{ID: "0a1b2c"},
		{ID: "0a1b2d", Function: "hello"},
		{ID: "0a1b2e", Function: "he-llo"},
		{ID: "0a1b2f", Name: "box"},
		{ID: "0a1b30", Name: "run-0a1b2c-1"},
	}
	for _, a := range boxes {
		name := containerOf(a).name
		for _, b := range boxes {
			if got := isNamed(b, name); got != (a == b) {
				t.Errorf("%+v is named %q: %v", b, name, got)
			}
		}
		if isNamed(a, a.ID) || isNamed(a, "") || isNamed(a, "-"+a.ID) {
			t.Errorf("%+v is named by its id, or without an origin", a)
		}
	}
}
