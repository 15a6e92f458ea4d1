package docker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
)

func TestEvents(t *testing.T) { each(t, nil, (*world).testEvents) }

// testEvents: docker events prints the events of Docker's engine for each command, in the same
// order.
func (w *world) testEvents(t *testing.T) {
	t.Helper()
	w.app(t)
	archive := filepath.Join(t.TempDir(), "app.tar")
	pushed := fretest.Registry(t) + "/team/app"
	told := w.follow(t)
	for _, step := range []struct {
		name     string
		commands []string
		want     []string
	}{
		{"before", nil, []string{"image create name=ID", "image tag name=app:latest", "image import name=app:latest"}},
		{"start, kill and rm", []string{"create --network none --name box --label a=b app sleep", "start box", "kill box", "rm box"}, []string{
			"container create a=b name=box", "network connect name=none type=null", "container start a=b name=box",
			"container kill a=b name=box signal=9", "network disconnect name=none type=null", "container die a=b exitCode=137 name=box", "container destroy a=b name=box",
		}},
		{"a signal that does not end it", []string{"run -d -i --network none --name box app orders", "kill -s WINCH box", "rm -f box"}, []string{
			"container create name=box", "network connect name=none type=null", "container start name=box",
			"container kill name=box signal=28",
			"container kill name=box signal=9", "network disconnect name=none type=null", "container die exitCode=137 name=box", "container destroy name=box",
		}},
		{"stop and restart", []string{"run -d --stop-signal KILL --network none --name box app sleep", "stop box", "stop box", "start box", "restart box", "rename box other", "stop other", "rm other"}, []string{
			"container create name=box", "network connect name=none type=null", "container start name=box",
			"container kill name=box signal=9", "network disconnect name=none type=null", "container die exitCode=137 name=box", "container stop name=box",
			"network connect name=none type=null", "container start name=box",
			"container kill name=box signal=9", "network disconnect name=none type=null", "container die exitCode=137 name=box", "container stop name=box",
			"network connect name=none type=null", "container start name=box", "container restart name=box",
			"container rename name=other oldName=/box",
			"container kill name=other signal=9", "network disconnect name=none type=null", "container die exitCode=137 name=other", "container stop name=other", "container destroy name=other",
		}},
		{"run with a volume, to its end", []string{"run --rm --network none --name box -v /work:/work:ro app"}, []string{
			"container create name=box", "container attach name=box", "network connect name=none type=null",
			"volume mount destination=/work driver=local propagation= read/write=false", "container start name=box",
			"network disconnect name=none type=null", "volume unmount driver=local", "container die exitCode=0 name=box", "container destroy name=box",
		}},
		{"a stop of one that is removed at its end", []string{"run -d --rm --stop-signal KILL --network none --name box app sleep", "stop box"}, []string{
			"container create name=box", "network connect name=none type=null", "container start name=box",
			"container kill name=box signal=9", "network disconnect name=none type=null", "container die exitCode=137 name=box", "container stop name=box", "container destroy name=box",
		}},
		{"a command that is not there", []string{"create --network none --name box --entrypoint /nothing app", "rm box"}, []string{"container create name=box", "container destroy name=box"}},
		{"container prune", []string{"create --network none --name box app", "container prune -f"}, []string{
			"container create name=box", "container destroy name=box", "container prune",
		}},
		{"tag, save and load", []string{"tag app second:1", "save -o " + archive + " second:1", "rmi second:1", "load -q -i " + archive, "rmi second:1"}, []string{
			"image tag name=second:1", "image save name=second:1", "image untag name=second:1",
			"image tag name=second:1", "image load name=second:1", "image untag name=second:1",
		}},
		{"push and pull", []string{"tag app " + pushed + ":2", "push -q " + pushed + ":2", "rmi " + pushed + ":2", "pull -q " + pushed + ":2", "rmi " + pushed + ":2"}, []string{
			"image tag name=" + pushed + ":2", "image tag name=" + pushed + "@ID", "image push name=" + pushed, "image untag name=" + pushed + ":2", "image untag name=" + pushed + "@ID",
			"image tag name=" + pushed + "@ID", "image tag name=" + pushed + ":2", "image pull name=" + pushed, "image untag name=" + pushed + ":2", "image untag name=" + pushed + "@ID",
		}},
		{"prunes", []string{"image prune -f", "builder prune -a -f"}, []string{"image prune", "builder prune"}},
		{"nothing beside", []string{"tag app last:1"}, []string{"image tag name=last:1"}},
	} {
		for _, command := range step.commands {
			w.ok(t, words(command)...)
		}
		if diff := cmp.Diff(step.want, told.next(t, len(step.want))); diff != "" {
			t.Fatalf("%s: events (-want +got):\n%s", step.name, diff)
		}
	}
}

var digests = regexp.MustCompile(`sha256:[0-9a-f]{64}`)

// watch is a client that prints events.
type watch struct{ lines *bufio.Scanner }

// follow begins with the remembered events.
func (w *world) follow(t *testing.T) *watch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	cmd := w.command(ctx, "events", "--since", "1h", "--format", "{{json .}}")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
	})
	return &watch{bufio.NewScanner(out)}
}

// next reads n events as type, action and attributes, without the attributes that differ from run
// to run.
func (w *watch) next(t *testing.T, n int) (all []string) {
	t.Helper()
	for range n {
		if !w.lines.Scan() {
			t.Fatalf("docker events ends after %q: %v", all, w.lines.Err())
		}
		var e struct {
			Type, Action string
			Actor        struct{ Attributes map[string]string }
		}
		if err := json.Unmarshal(w.lines.Bytes(), &e); err != nil {
			t.Fatalf("docker events prints %q: %v", w.lines.Text(), err)
		}
		fields := []string{e.Type, e.Action}
		for _, key := range slices.Sorted(maps.Keys(e.Actor.Attributes)) {
			value := digests.ReplaceAllString(e.Actor.Attributes[key], "ID")
			if !slices.Contains([]string{"container", "image", "execDuration", "reclaimed", "fre.tenant", "kind"}, key) {
				fields = append(fields, key+"="+value)
			}
		}
		all = append(all, strings.Join(fields, " "))
	}
	return all
}
