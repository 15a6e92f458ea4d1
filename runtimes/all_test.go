package runtimes_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/runtimes"
)

// The template's schema, which editors use for completion, lists the runtimes, bases and package
// sites.
func TestSchemaNames(t *testing.T) {
	var schema struct {
		Properties struct {
			Runtime struct{ Enum []string }
			Base    struct {
				AnyOf []struct{ Enum []string }
			}
			Packages struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(api.TemplateSchema, &schema); err != nil {
		t.Fatal(err)
	}
	packages := []string{"deb", "npm_scripts", "pip_index"} // the builder's own, and settings of sites
	var all, bases []string
	for _, r := range runtimes.All() {
		all = append(all, r.Name())
	}
	for _, b := range runtimes.Bases() {
		bases = append(bases, b.Name)
	}
	for _, s := range runtimes.Sites() {
		packages = append(packages, s.Name())
	}
	for what, names := range map[string][2][]string{
		"runtime":  {all, schema.Properties.Runtime.Enum},
		"base":     {bases, schema.Properties.Base.AnyOf[0].Enum},
		"packages": {packages, slices.Collect(maps.Keys(schema.Properties.Packages.Properties))},
	} {
		slices.Sort(names[0])
		slices.Sort(names[1])
		if diff := cmp.Diff(names[0], names[1]); diff != "" {
			t.Errorf("%s: -code +schema:\n%s", what, diff)
		}
	}
}
