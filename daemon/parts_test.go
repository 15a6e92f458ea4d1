package daemon

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLeftOut: a build without an adapter links none of the adapter's code.
func TestLeftOut(t *testing.T) {
	var adapters []string
	for _, entry := range new(Config).parts() {
		if slices.Contains([]string{"docker", "lambda", "openfaas"}, entry.name) {
			adapters = append(adapters, entry.name)
		}
	}
	for _, tags := range append(adapters, "", strings.Join(adapters, ",no")) {
		if tags != "" {
			tags = "no" + tags
		}
		out, err := exec.Command("go", "list", "-deps", "-tags", tags, "../cmd/fre").Output()
		if err != nil {
			t.Fatal(err)
		}
		linked := strings.Fields(string(out))
		for _, name := range adapters {
			left := slices.Contains(strings.Split(tags, ","), "no"+name)
			if slices.Contains(linked, "github.com/fre-engine/fre/adapters/"+name) == left {
				t.Errorf("go list -tags %q: adapters/%s linked is %v", tags, name, left)
			}
		}
	}
}

// The daemon refuses the configuration of a part that the build left out.
func TestLeftOutRefused(t *testing.T) {
	parts := []partEntry{{"gateway", true, newGateway}, {"lambda", false, nil}}
	if err := leftOut(parts); err != nil {
		t.Errorf("not configured: %v", err)
	}
	parts[1].on = true
	err := leftOut(parts)
	if err == nil || err.Error() != "lambda: fre was built without the feature" {
		t.Errorf("configured: %v", err)
	}
}
