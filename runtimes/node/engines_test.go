package node

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
)

// TestWarnFromLock: The warnings come from the lock, and do not depend on a fetch.
func TestWarnFromLock(t *testing.T) {
	l := packageLock{ByPlace: map[string]lockedPackage{
		"node_modules/new":  {Version: "1.0.0", Engines: json.RawMessage(`{"node":"20.x || >=22"}`)},
		"node_modules/old":  {Version: "1.0.0", Engines: json.RawMessage(`["node >= 0.8"]`)},
		"node_modules/fits": {Version: "1.0.0", Engines: json.RawMessage(`{"node":"^14.17.0 || ^16.13.0 || >=18.0.0"}`)},
		"node_modules/odd":  {Version: "1.0.0", Engines: json.RawMessage(`{"node":"whatever you have"}`)},
		"node_modules/s":    {Version: "1.0.0", InstallScript: true},
		"node_modules/ran":  {Version: "1.0.0", InstallScript: true},
	}}
	for range 2 {
		var got []string
		s := &site{allowed: []string{"ran"}, step: &image.Step{
			Debian: map[string]string{"nodejs": "18.20.4+dfsg-1~deb12u1"},
			Report: func(e image.Progress) { got = append(got, e.Step+" "+e.Name+" "+e.Message) },
		}}
		if err := s.warn(&l, l.places()); err != nil {
			t.Fatal(err)
		}
		if len(got) != 2 || !strings.HasPrefix(got[0], "warning new 1.0.0 needs Node 20.x || >=22, but the base has 18.20.4") || !strings.HasPrefix(got[1], "warning s has an install script") {
			t.Errorf("told %q", got)
		}
	}
}

// TestLacksOptional: A foreign lock without this machine's optional package is refused.
func TestLacksOptional(t *testing.T) {
	here := "@rollup/rollup-linux-" + architecture() + "-gnu"
	needs := map[string]json.RawMessage{here: nil, "@rollup/rollup-darwin-arm64": nil, "@rollup/rollup-linux-" + architecture() + "-musl": nil}
	for name, c := range map[string]struct {
		packages map[string]lockedPackage
		bad      bool
	}{
		"lacks":  {map[string]lockedPackage{"node_modules/rollup": {OptionalDependencies: needs}, "node_modules/@rollup/rollup-darwin-arm64": {}}, true},
		"has":    {map[string]lockedPackage{"node_modules/rollup": {OptionalDependencies: needs}, "node_modules/" + here: {}}, false},
		"nested": {map[string]lockedPackage{"node_modules/a/node_modules/rollup": {OptionalDependencies: needs}, "node_modules/a/node_modules/" + here: {}}, false},
		"beside": {map[string]lockedPackage{"node_modules/rollup": {OptionalDependencies: needs}, "node_modules/a/node_modules/" + here: {}}, true},
		"dev":    {map[string]lockedPackage{"node_modules/rollup": {Dev: true, OptionalDependencies: needs}}, false},
	} {
		err := (&packageLock{ByPlace: c.packages}).lacksOptional()
		if c.bad != (err != nil) || c.bad && !strings.Contains(err.Error(), here) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, want := range map[string]bool{"@esbuild/linux-x64": true, "esbuild-linux-64": true, "@next/swc-linux-x64-musl": false, "linux-x640": false, "fsevents": false, "@img/sharp-win32-x64": false} {
		if architecture() == "x64" && forHere(name) != want {
			t.Errorf("forHere(%q) = %v", name, !want)
		}
	}
}
