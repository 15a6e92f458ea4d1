package docker

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/store"
)

// TestEventsOf: each change becomes events in Docker's words, with the labels of the changed
// object.
func TestEventsOf(t *testing.T) {
	labels := map[string]string{"a": "b"}
	config := []byte(`{"labels":{"kind":"app"}}`)
	type told struct {
		Type, Action, ID string
		Attributes       map[string]string
	}
	box := func(action string, more map[string]string) told {
		attributes := map[string]string{"a": "b", "image": "app:1", "name": "box", "fre.tenant": "t"}
		maps.Copy(attributes, more)
		return told{"container", action, "id", attributes}
	}
	for _, test := range []struct {
		name string
		c    store.Change
		want []told
	}{
		{"a function", store.Change{Kind: store.ChangeFunction, Action: store.ActionDeploy, ID: "f"}, nil},
		{"an image without a name", store.Change{Kind: store.ChangeImage, Action: store.ActionDelete, ID: "sha256:1", Config: config}, []told{
			{"image", "delete", "sha256:1", map[string]string{"kind": "app", "name": "sha256:1"}},
		}},
		{"a pull", store.Change{Kind: store.ChangeImage, Action: store.ActionPull, ID: "sha256:1", Name: "host:5000/app:1", Config: config}, []told{
			{"image", "pull", "host:5000/app:1", map[string]string{"kind": "app", "name": "host:5000/app"}},
		}},
		{"a pull by digest", store.Change{Kind: store.ChangeImage, Action: store.ActionPull, ID: "sha256:1", Name: "app@sha256:2"}, []told{
			{"image", "pull", "app@sha256:2", map[string]string{"name": "app"}},
		}},
		{"images pruned", store.Change{Kind: store.ChangeImage, Action: store.ActionPrune, Attributes: map[string]string{"bytes": "7"}}, []told{
			{"image", "prune", "", map[string]string{"reclaimed": "7"}},
		}},
		{"containers pruned", store.Change{Kind: store.ChangeSandbox, Action: store.ActionPrune, Attributes: map[string]string{"bytes": "0"}}, []told{
			{"container", "prune", "", map[string]string{"reclaimed": "0"}},
		}},
		{"downloads pruned", store.Change{Kind: store.ChangeCache, Action: store.ActionPrune, Attributes: map[string]string{"bytes": "8"}}, []told{
			{"builder", "prune", "", map[string]string{"reclaimed": "8"}},
		}},
		{"an instance's start", store.Change{Kind: store.ChangeSandbox, Action: store.ActionStart, ID: "id", Attributes: map[string]string{"function": "f", "image": "f:1", "tenant": "t"}}, []told{
			{"container", "start", "id", map[string]string{"image": "f:1", "name": "f-id", "fre.function": "f", "fre.tenant": "t"}},
		}},
		{"a container's start", store.Change{
			Kind: store.ChangeSandbox, Action: store.ActionStart, ID: "id", Name: "box", Labels: labels,
			Attributes: map[string]string{"image": "app:1", "tenant": "t", "network": "egress", "work": "rw"},
		}, []told{
			{"network", "connect", networkID("bridge"), map[string]string{"container": "id", "name": "bridge", "type": "bridge"}},
			{"volume", "mount", "fre-work", map[string]string{"container": "id", "destination": "/work", "driver": "local", "propagation": "", "read/write": "true"}},
			box("start", nil),
		}},
		{"its end by the memory limit", store.Change{
			Kind: store.ChangeSandbox, Action: store.ActionExit, ID: "id", Name: "box", Labels: labels,
			Attributes: map[string]string{"image": "app:1", "tenant": "t", "network": "none", "work": "ro", "exit_code": "-1", "signal": "9", "oom": "true", "seconds": "3"},
		}, []told{
			box("oom", nil),
			{"network", "disconnect", networkID("none"), map[string]string{"container": "id", "name": "none", "type": "null"}},
			{"volume", "unmount", "fre-work", map[string]string{"container": "id", "driver": "local"}},
			box("die", map[string]string{"exitCode": "137", "execDuration": "3"}),
		}},
		{"a resize", store.Change{
			Kind: store.ChangeSandbox, Action: store.ActionResize, ID: "id", Name: "box", Labels: labels,
			Attributes: map[string]string{"image": "app:1", "tenant": "t", "name": "box", "rows": "24", "columns": "80"},
		}, []told{box("resize", map[string]string{"height": "24", "width": "80"})}},
	} {
		test.c.Time = time.Unix(5, 7)
		var got []told
		for _, e := range eventsOf(test.c) {
			got = append(got, told{string(e.Type), string(e.Action), e.Actor.ID, e.Actor.Attributes})
			if e.Time != 5 || e.TimeNano != 5e9+7 || e.Scope != "local" {
				t.Errorf("%s: %s at %d, %d of scope %q", test.name, e.Action, e.Time, e.TimeNano, e.Scope)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestEventFilters: filters choose events as Docker's engine does: one value of each key.
func TestEventFilters(t *testing.T) {
	started := eventsOf(store.Change{
		Kind: store.ChangeSandbox, Action: store.ActionStart, ID: "0123456789ab", Name: "watched", Labels: map[string]string{"a": "b"},
		Attributes: map[string]string{"image": "app:1", "tenant": "t", "network": "none", "work": "rw"},
	})
	pulled := eventsOf(store.Change{Kind: store.ChangeImage, Action: store.ActionPull, ID: "sha256:1", Name: "app:1"})
	all := append(started, pulled...)
	for filter, want := range map[string][]string{
		"":                                      {"connect", "mount", "start", "pull"},
		`{"type":["container"]}`:                {"start"},
		`{"type":["network","volume"]}`:         {"connect", "mount"},
		`{"event":["start","pull"]}`:            {"start", "pull"},
		`{"container":["watched"]}`:             {"start"},
		`{"container":["0123"]}`:                {"start"},
		`{"container":["watch"]}`:               {"start"},
		`{"container":["other"]}`:               nil,
		`{"network":["none"]}`:                  {"connect"},
		`{"network":["bridge"]}`:                nil,
		`{"volume":["fre-work"]}`:               {"mount"},
		`{"image":["app"]}`:                     {"start", "pull"},
		`{"image":["app:1"]}`:                   {"start", "pull"},
		`{"label":["a=b"]}`:                     {"start"},
		`{"label":["a=c"]}`:                     nil,
		`{"daemon":["x"]}`:                      nil,
		`{"scope":["swarm"]}`:                   nil,
		`{"event":["mount"],"type":["volume"]}`: {"mount"},
	} {
		f, err := parseFilters(filter)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range all {
			if f.event(e) {
				got = append(got, string(e.Action))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", filter, diff)
		}
	}
}
