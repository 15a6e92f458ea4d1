package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

func inTenant(tenant string) func(*image.Config) {
	return func(c *image.Config) { c.Tenant = tenant }
}

func (r *rig) logLines(name string) (lines []string) {
	r.t.Helper()
	err := r.Logs(r.t.Context(), name, live.LogOptions{Tail: -1}, func(l live.LogLine) error {
		lines = append(lines, l.Function+": "+l.Text)
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return lines
}

func (r *rig) names() (names []string) {
	for _, f := range r.Functions() {
		names = append(names, f.Name)
	}
	return names
}

// TestTenantsNames: two tenants have functions of the same name, each with separate code, logs,
// counters, /work, name and tenant. A change of one function does not affect the second.
func TestTenantsNames(t *testing.T) {
	r := open(t)
	for _, tenant := range []string{"default", "acme"} {
		f, err := r.Deploy(t.Context(), "hello", r.image("hello", inTenant(tenant)), DeployOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if want := template.QualifiedName("hello", tenant); f.Name != want || f.Config.Tenant != tenant {
			t.Errorf("deployed for %s: %s of tenant %s, want %s", tenant, f.Name, f.Config.Tenant, want)
		}
	}
	for _, test := range []struct{ name, is string }{{"hello", "default"}, {"hello.default", "default"}, {"hello.acme", "acme"}} {
		r.mustCall(test.name, "/invocation", "", "hello "+test.is)
	}
	if _, _, err := r.call(t.Context(), "hello.other", "/", "x"); !errors.As(err, new(*UnknownError)) {
		t.Errorf("of a third tenant: %v, want *UnknownError", err)
	}
	r.mustCall("hello.acme", "/print", "", "")
	eventually(t, "the line in the log", func() bool { return slices.Contains(r.logLines("hello.acme"), "hello.acme: hello log") })
	if lines := r.logLines("hello"); len(lines) > 0 {
		t.Errorf("the log of the other: %q, want nothing", lines)
	}
	for name, want := range map[string]uint64{"hello": 2, "hello.acme": 2} {
		if f, err := r.Function(name); err != nil || f.Invocations != want {
			t.Errorf("%s: %+v, %v; want %d invocations", name, f, err, want)
		}
	}
	var works []string
	for _, name := range []string{"hello", "hello.acme"} {
		f, err := r.lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		works = append(works, f.work)
	}
	if works[0] == works[1] {
		t.Errorf("both have /work in %s", works[0])
	}
	// An image, deployed in another tenant by name.
	if _, err := r.Deploy(t.Context(), "third.beta", r.image("hello", inTenant("acme")), DeployOptions{}); err != nil {
		t.Fatal(err)
	}
	r.mustCall("third.beta", "/invocation", "", "third beta")
	if err := r.RemoveFunction(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.start(Config{})
	if diff := cmp.Diff([]string{"hello.acme", "third.beta"}, r.names()); diff != "" {
		t.Errorf("after one was removed, and a restart (-want +got):\n%s", diff)
	}
	r.mustCall("third.beta", "/invocation", "", "third beta")
	r.mustCall("hello.acme", "/invocation", "", "hello acme")
	var field *template.FieldError
	for _, bad := range []string{"a.b.c", "hello.Acme", "hello@3", "-x"} {
		if _, err := r.Deploy(t.Context(), bad, r.image("hello", nil), DeployOptions{}); !errors.As(err, &field) {
			t.Errorf("deployed as %q: %v, want a *FieldError", bad, err)
		}
	}
}

// TestQualifyNames: the engine starts on a state directory of an older version. A tenant's function
// gets a qualified name, keeps the log and works. If the new name is taken, the function is left
// out, and does not run as another tenant's function.
func TestQualifyNames(t *testing.T) {
	r := open(t)
	for _, f := range []struct{ name, tenant string }{{"old", "acme"}, {"plain", "default"}, {"both", "acme"}} {
		r.before(f.name, r.image(f.name, inTenant(f.tenant)))
	}
	// A current engine has deployed "both", then an older engine deployed it again.
	taken := r.image("both", inTenant("acme"))
	spec, err := json.Marshal(functionSpec{Template: "both", Version: "1", Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.PutFunction(t.Context(), store.Function{Name: "both.acme", Image: taken.Digest, Spec: spec}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second start changes nothing
		r.stop()
		r.start(Config{})
		if diff := cmp.Diff([]string{"both.acme", "old.acme", "plain"}, r.names()); diff != "" {
			t.Errorf("functions (-want +got):\n%s", diff)
		}
		r.mustCall("old.acme", "/invocation", "", "old acme")
		r.mustCall("plain", "/invocation", "", "plain default")
		if lines := r.logLines("old.acme"); !slices.Contains(lines, "old.acme: a line of before") {
			t.Errorf("the log holds %q", lines)
		}
		if _, err := os.Stat(filepath.Join(r.state, "logs", "old")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("its old log: %v", err)
		}
	}
}

// before stores a function as engines without qualified names did.
func (r *rig) before(name string, img *store.Image) {
	r.t.Helper()
	spec := []byte(`{"template":"` + img.Name + `","version":"1"}`)
	if err := r.store.PutFunction(context.Background(), store.Function{Name: name, Image: img.Digest, Spec: spec}); err != nil {
		r.t.Fatal(err)
	}
	log, err := r.openLog(name)
	if err != nil {
		r.t.Fatal(err)
	}
	log.Append(live.LogLine{Stream: "stdout", Text: "a line of before"})
	log.Close()
}
