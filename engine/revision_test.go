package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// revise deploys a revision of f that knows its mark.
func (r *rig) revise(mark string, o DeployOptions) {
	r.t.Helper()
	img := r.image("f", func(c *image.Config) { c.Env = []string{"MARK=" + mark} })
	if _, err := r.Deploy(r.t.Context(), "f", img, o); err != nil {
		r.t.Fatal(err)
	}
}

// mark returns the mark of the answering revision.
func (r *rig) mark(name string, header ...[2]string) (mark string, resp *Response) {
	r.t.Helper()
	resp, err := r.Invoke(r.t.Context(), name, &Request{Method: "GET", Path: "/look", Query: "env=MARK", Headers: header})
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		r.t.Fatal(err)
	}
	return string(b), resp
}

// An image without a name keeps the template of the deployment. An image that was not deployed has
// no template.
func TestDeployWithoutName(t *testing.T) {
	r := open(t)
	r.revise("one", DeployOptions{})
	first, err := r.Function("f")
	if err != nil {
		t.Fatal(err)
	}
	r.revise("two", DeployOptions{}) // its image takes over the name
	img, err := r.Image(string(first.Image))
	if err != nil || len(img.Names) != 0 {
		t.Fatalf("image %+v, %v", img, err)
	}
	f, err := r.Deploy(t.Context(), "f", img, DeployOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := r.mark("f"); got != "one" || f.ImageRef != first.ImageRef || f.Revision != 3 {
		t.Errorf("%q answers, of %s, revision %d; want one, %s, 3", got, f.ImageRef, f.Revision, first.ImageRef)
	}
	stranger := r.image("stranger", nil)
	if err := r.store.Untag(t.Context(), stranger.Names...); err != nil {
		t.Fatal(err)
	}
	if stranger, err = r.Image(string(stranger.Digest)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Deploy(t.Context(), "f", stranger, DeployOptions{}); !errors.Is(err, ErrNameTaken) {
		t.Errorf("an image of nobody knows what: %v, want ErrNameTaken", err)
	}
}

func (r *rig) numbers() (kept []int) {
	r.t.Helper()
	revs, err := r.Revisions("f")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, rev := range revs.Revisions {
		kept = append(kept, rev.Number)
	}
	return kept
}

// TestRollback: every deployment is a revision. A rollback to a revision with warm instances starts
// none, and survives a restart of the engine.
func TestRollback(t *testing.T) {
	r := open(t)
	r.revise("one", DeployOptions{By: "ada"})
	if _, err := r.Rollback(t.Context(), "f", ""); !errors.Is(err, ErrNoRevision) || !strings.Contains(err.Error(), "fre function revisions f") {
		t.Errorf("with none before: %v, want ErrNoRevision and the next step", err)
	}
	_, first := r.mark("f")
	r.revise("two", DeployOptions{})
	if got, _ := r.mark("f"); got != "two" {
		t.Fatalf("after the second deployment %q answers", got)
	}
	if _, err := r.Rollback(t.Context(), "f", ""); err != nil {
		t.Fatal(err)
	}
	got, again := r.mark("f")
	if got != "one" || again.Cold || again.Instance != first.Instance {
		t.Errorf("rolled back: %q by %s, cold %v; want one, by %s, warm", got, again.Instance, again.Cold, first.Instance)
	}
	if _, err := r.Rollback(t.Context(), "f", "7"); !errors.As(err, new(*UnknownError)) || !strings.Contains(err.Error(), "fre function revisions f") {
		t.Errorf("to a revision that never was: %v, want *UnknownError and the next step", err)
	}
	r.stop()
	r.start(Config{})
	if got, _ := r.mark("f"); got != "one" {
		t.Errorf("after a restart %q answers, want one", got)
	}
	r.revise("three", DeployOptions{})
	revs, err := r.Revisions("f")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{3, 2, 1}, r.numbers()); diff != "" || revs.Revisions[2].By != "ada" || revs.Revisions[0].Config == revs.Revisions[1].Config {
		t.Errorf("revisions %+v (-want +got):\n%s", revs, diff)
	}
	if _, err := r.Rollback(t.Context(), "f", "2"); err != nil {
		t.Fatal(err)
	}
	if got, _ := r.mark("f"); got != "two" {
		t.Errorf("rolled back to 2: %q answers", got)
	}
}

// TestSplit: events go to revisions by weight, header and alias, and stay with a revision by header
// or cookie. A wrong split is refused and changes nothing.
func TestSplit(t *testing.T) {
	r := open(t)
	r.revise("one", DeployOptions{})
	if _, resp := r.mark("f"); resp.Revision != "" {
		t.Errorf("without a split the answer names revision %q", resp.Revision)
	}
	r.revise("two", DeployOptions{NoTraffic: true})
	if got, _ := r.mark("f"); got != "one" {
		t.Errorf("deployed without traffic, %q answers", got)
	}
	for name, want := range map[string]string{"f@1": "one", "f@2": "two", "f@latest": "two", "f.default@2": "two"} {
		if got, resp := r.mark(name); got != want || resp.Revision == "" {
			t.Errorf("%s: %q by revision %q, want %s", name, got, resp.Revision, want)
		}
	}
	split := func(o Split) {
		t.Helper()
		if _, err := r.SetTraffic(t.Context(), "f", o); err != nil {
			t.Fatal(err)
		}
	}
	half := []Target{{Revision: "1", Percent: 50}, {Revision: "2", Percent: 50}}
	split(Split{Weights: half})
	seen := map[string]int{}
	for range 100 { // fails once in 2^99 runs
		got, _ := r.mark("f")
		seen[got]++
	}
	if seen["one"] == 0 || seen["two"] == 0 {
		t.Errorf("of 100 by halves: %v", seen)
	}
	for _, sticky := range []struct {
		how, field, form string
	}{{"header:X-User", "x-user", "%s"}, {"cookie:session", "Cookie", "a=b; session=%s"}} {
		split(Split{Weights: half, Sticky: sticky.how})
		seen := map[string]int{}
		for i := range 20 {
			h := [2]string{sticky.field, fmt.Sprintf(sticky.form, fmt.Sprint("user", i))}
			first, _ := r.mark("f", h)
			seen[first]++
			for range 3 {
				if got, _ := r.mark("f", h); got != first {
					t.Fatalf("%s: user %d went to %s, then to %s", sticky.how, i, first, got)
				}
			}
		}
		if len(seen) != 2 {
			t.Errorf("%s: 20 users: %v", sticky.how, seen)
		}
	}
	split(Split{Weights: []Target{{Revision: "1", Percent: 100}}, Headers: []Target{{Header: "X-Canary", Value: "1", Revision: "latest"}}})
	if got, _ := r.mark("f", [2]string{"X-Canary", "1"}); got != "two" {
		t.Errorf("with the header %q answers", got)
	}
	if got, _ := r.mark("f", [2]string{"X-Canary", "0"}); got != "one" {
		t.Errorf("with another value %q answers", got)
	}
	if _, err := r.SetAliases(t.Context(), "f", map[string]string{"stable": "1", "next": "2"}, nil); err != nil {
		t.Fatal(err)
	}
	before, err := r.Revisions("f")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []Split{
		{Weights: []Target{{Revision: "1", Percent: 90}}},
		{Weights: []Target{{Revision: "1", Percent: 60}, {Revision: "stable", Percent: 40}}},
		{Weights: []Target{{Revision: "1", Percent: 101}, {Revision: "2", Percent: -1}}},
		{Sticky: "user"},
		{Sticky: "cookie:"},
		{Headers: []Target{{Header: "a b", Value: "1", Revision: "1"}}},
	} {
		if _, err := r.SetTraffic(t.Context(), "f", bad); !errors.Is(err, ErrTraffic) {
			t.Errorf("%+v: %v, want ErrTraffic", bad, err)
		}
	}
	for _, unknown := range []string{"9", "0", "-1", "01", "none", ""} {
		if _, err := r.SetTraffic(t.Context(), "f", Split{Weights: []Target{{Revision: unknown, Percent: 100}}}); !errors.As(err, new(*UnknownError)) {
			t.Errorf("revision %q: %v, want *UnknownError", unknown, err)
		}
		if _, _, err := r.call(t.Context(), "f@"+unknown, "/", ""); !errors.As(err, new(*UnknownError)) {
			t.Errorf("f@%s: %v, want *UnknownError", unknown, err)
		}
	}
	for _, alias := range []string{"latest", "12", "A", ""} {
		if _, err := r.SetAliases(t.Context(), "f", map[string]string{alias: "1"}, nil); !errors.As(err, new(*template.FieldError)) {
			t.Errorf("alias %q: %v, want *template.FieldError", alias, err)
		}
	}
	if after, err := r.Revisions("f"); err != nil || !cmp.Equal(before.Traffic, after.Traffic) {
		t.Errorf("after what was refused: %+v, %v; want %+v", after.Traffic, err, before.Traffic)
	}
	r.revise("three", DeployOptions{}) // takes all events except those of aliases
	// The engine dies, and its database is lost.
	r.stop()
	if err := os.Remove(filepath.Join(r.state, "store", "fre.db")); err != nil {
		t.Fatal(err)
	}
	r.start(Config{})
	for name, want := range map[string]string{"f": "three", "f@stable": "one", "f@next": "two", "f@1": "one"} {
		if got, _ := r.mark(name); got != want {
			t.Errorf("%s from the index: %q, want %s", name, got, want)
		}
	}
	if _, err := r.SetAliases(t.Context(), "f", nil, []string{"next", "nobody"}); !errors.As(err, new(*UnknownError)) {
		t.Errorf("an alias that is not there: %v", err)
	}
	if err := r.RemoveRevision(t.Context(), "f", "next"); !errors.Is(err, ErrRevisionUsed) {
		t.Errorf("forget what has an alias: %v, want ErrRevisionUsed", err)
	}
}

// TestRevisionsKept: the engine keeps the configured number of revisions beside the serving ones.
// Their images cannot be removed; images and series of forgotten revisions can go.
func TestRevisionsKept(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	reg := prometheus.NewRegistry()
	r := &rig{t: t, state: t.TempDir()}
	r.start(Config{Metrics: reg, Revisions: 2})
	var images []store.Digest
	for i := range 6 {
		mark := fmt.Sprint(i + 1)
		r.revise(mark, DeployOptions{})
		if got, _ := r.mark("f"); got != mark {
			t.Errorf("revision %s: %q answers", mark, got)
		}
		f, err := r.Function("f")
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, f.Image)
		if i == 0 {
			if _, err := r.SetAliases(t.Context(), "f", map[string]string{"stable": "1"}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]int{6, 5, 4, 1}, r.numbers()); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	for i, d := range images {
		_, err := r.RemoveImage(t.Context(), string(d), build.RemoveOptions{Force: true})
		if kept := slices.Contains(r.numbers(), i+1); kept != errors.Is(err, store.ErrInUse) || !kept && err != nil {
			t.Errorf("image of revision %d removed: %v", i+1, err)
		}
	}
	if err := r.RemoveRevision(t.Context(), "f", "4"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveImage(t.Context(), string(images[3]), build.RemoveOptions{Force: true}); err != nil {
		t.Errorf("once its revision was forgotten: %v", err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "fre_invocation_seconds" && l.GetName() == "revision" {
					seen[l.GetValue()] = true
				}
			}
		}
	}
	if diff := cmp.Diff(map[string]bool{"6": true, "5": true, "1": true}, seen); diff != "" {
		t.Errorf("revisions with series (-want +got):\n%s", diff)
	}
}

// TestRevisionNewestStays: the newest revision stays, even if events have gone back to an earlier
// revision, because NAME@latest always names it.
func TestRevisionNewestStays(t *testing.T) {
	r := open(t)
	for _, mark := range []string{"one", "two", "three"} {
		r.revise(mark, DeployOptions{})
	}
	if _, err := r.Rollback(t.Context(), "f", "1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"3", "latest"} {
		if err := r.RemoveRevision(t.Context(), "f", name); !errors.Is(err, ErrRevisionUsed) || !strings.Contains(err.Error(), "newest") {
			t.Errorf("forget revision %s: %v, want ErrRevisionUsed for it is the newest", name, err)
		}
	}
	if err := r.RemoveRevision(t.Context(), "f", "2"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]int{3, 1}, r.numbers()); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if got, _ := r.mark("f@latest"); got != "three" {
		t.Errorf("f@latest: %q answers", got)
	}
}

// TestRevisionDrains: events in flight end on their instances, tunnels are closed, and the old
// revision is retired after a while without requests.
func TestRevisionDrains(t *testing.T) {
	r := open(t)
	idle := func(mark string) func(*image.Config) {
		return func(c *image.Config) {
			c.Env, c.Instances.Idle, c.Instances.Min = []string{"MARK=" + mark}, time.Second, 1
		}
	}
	r.deploy("f", idle("one"))
	_, first := r.mark("f")
	done := make(chan error, 1)
	body, write := io.Pipe()
	go func() {
		resp, err := r.Invoke(t.Context(), "f", &Request{Method: "POST", Path: "/slurp", Body: body, Length: -1})
		if err == nil {
			if resp.Instance != first.Instance {
				err = fmt.Errorf("answered by %s, begun on %s", resp.Instance, first.Instance)
			}
			err = errors.Join(err, resp.Body.Close())
		}
		done <- err
	}()
	eventually(t, "the event to run", func() bool { f, err := r.Function("f"); return err == nil && f.Busy == 1 })
	r.deploy("f", idle("two"))
	if got, _ := r.mark("f"); got != "two" {
		t.Errorf("%q answers, want two", got)
	}
	if _, err := io.WriteString(write, "the end"); err != nil {
		t.Fatal(err)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("in flight: %v", err)
	}
	live := func() int {
		d, err := r.find("f")
		if err != nil {
			t.Fatal(err)
		}
		return len(d.live)
	}
	eventually(t, "the old revision to be retired", func() bool { return live() == 1 })
	eventually(t, "the new one's sandbox to be the only one", func() bool { return len(r.Sandboxes(false)) == 1 })
	if got, resp := r.mark("f@1"); got != "one" || !resp.Cold {
		t.Errorf("asked for after that: %q, cold %v; want one, started anew", got, resp.Cold)
	}
	eventually(t, "it to be retired again", func() bool { return live() == 1 })
}

// TestRevisionOfLogs: a log line names its revision, and the lines of one revision can be read
// alone.
func TestRevisionOfLogs(t *testing.T) {
	r := open(t)
	for i := range 2 {
		r.revise(fmt.Sprint(i), DeployOptions{})
		r.mustCall("f", "/print", "", "")
	}
	lines := func(name string) (revisions []int) {
		if err := r.Logs(t.Context(), name, live.LogOptions{Tail: -1}, func(l live.LogLine) error {
			revisions = append(revisions, l.Revision)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(revisions)
		return revisions
	}
	eventually(t, "both lines", func() bool { return cmp.Equal(lines("f"), []int{1, 2}) })
	if diff := cmp.Diff([]int{1}, lines("f@1")); diff != "" {
		t.Errorf("f@1 (-want +got):\n%s", diff)
	}
	if err := r.Logs(t.Context(), "f@9", live.LogOptions{}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("f@9: %v, want ErrNotExist", err)
	}
}

// TestRouteAllocates: routing an event allocates nothing on the heap, with or without a split.
// Without a split it costs a single load.
func TestRouteAllocates(t *testing.T) {
	f, g := &function{}, &function{}
	whole, err := newDeployment("whole", &functionSpec{Traffic: allTo(1)}, map[int]*function{1: f}, nil)
	if err != nil || whole.only != f {
		t.Fatalf("%+v, %v", whole, err)
	}
	spec := &functionSpec{Traffic: Traffic{Weights: []Weight{{2, 10}, {1, 90}}, Sticky: "cookie:session"}}
	split, err := newDeployment("split", spec, map[int]*function{1: f, 2: g}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{}
	e.functions.Store(&map[string]*deployment{"whole": whole, "split": split})
	r := &Request{Headers: [][2]string{{"Cookie", "a=b; session=x"}}}
	for _, name := range []string{"whole", "split"} {
		if n := testing.AllocsPerRun(100, func() {
			if f, _, err := e.route(name, r); f == nil || err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestFront: the requested revision, live or not, says who may call. If events may go to several
// revisions, the strictest rule holds.
func TestFront(t *testing.T) {
	r := open(t)
	for i, access := range []template.Access{AccessOpen, "", AccessToken, AccessOpen} {
		img := r.image("f", func(c *image.Config) { c.Access, c.Tenant, c.Env = access, "acme", append(c.Env, "N="+strconv.Itoa(i)) })
		if _, err := r.Deploy(t.Context(), "f", img, DeployOptions{NoTraffic: i == 2}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string, want map[string]template.Access) {
		t.Helper()
		for name, access := range want {
			if front, ok := r.Front(name); !ok || front.Tenant != "acme" || front.Access != access {
				t.Errorf("%s, %s: %+v, %v; want %q of acme", when, name, front, ok, access)
			}
		}
	}
	all := map[string]template.Access{"f.acme": AccessOpen, "f.acme@1": AccessOpen, "f.acme@2": "", "f.acme@3": AccessToken, "f.acme@latest": AccessOpen}
	check("deployed", all)
	for _, name := range []string{"f", "f@1", "f.acme@9", "f.acme@", "g"} {
		if front, ok := r.Front(name); ok {
			t.Errorf("%s: %+v, want none", name, front)
		}
	}
	for _, split := range []struct {
		to   Split
		want template.Access
	}{
		{Split{Weights: []Target{{Revision: "4", Percent: 90}, {Revision: "2", Percent: 10}}}, ""},
		{Split{Weights: []Target{{Revision: "4", Percent: 90}, {Revision: "3", Percent: 10}}}, AccessToken},
		{Split{Weights: []Target{{Revision: "4", Percent: 100}}, Headers: []Target{{Revision: "3", Header: "X-Canary", Value: "1"}}}, AccessToken},
		{Split{Weights: []Target{{Revision: "4", Percent: 100}}}, AccessOpen},
	} {
		if _, err := r.SetTraffic(t.Context(), "f.acme", split.to); err != nil {
			t.Fatal(err)
		}
		all["f.acme"] = split.want
		check(fmt.Sprintf("%+v", split.to), all)
	}
}
