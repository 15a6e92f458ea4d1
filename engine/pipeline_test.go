package engine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// pipeline builds and deploys a template with steps.
func (r *rig) pipeline(name, steps, more string) (*Function, error) {
	r.t.Helper()
	dir := r.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, template.FileName), []byte("id: "+name+"\npipeline: ["+steps+"]\n"+more), 0o600); err != nil {
		r.t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	defer root.Close()
	img, lock, err := r.Build(r.t.Context(), root, nil)
	if err != nil || lock != nil {
		r.t.Fatal(lock, err)
	}
	return r.Deploy(r.t.Context(), "", img, DeployOptions{})
}

func (r *rig) mustPipeline(name, steps, more string) {
	r.t.Helper()
	if _, err := r.pipeline(name, steps, more); err != nil {
		r.t.Fatal(err)
	}
}

// TestPipeline: a pipeline is called as any function, has revisions, and no sandbox.
func TestPipeline(t *testing.T) {
	r := calls(t, Config{Concurrency: 1})
	r.deploy("program", stdio)
	r.deploy("fresh", func(c *image.Config) { c.Instances.Isolation = template.IsolationEvent })
	r.mustPipeline("p", "g, f@1, program, fresh", "")
	body := strings.Repeat("z", 3<<20)
	if got, resp, err := r.call(t.Context(), "p", "/", body); err != nil || got != body || resp.Status != 200 {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(body), err)
	}
	r.mustCall("f", "/call/p/", "called by another", "called by another")
	r.mustCall("f", "/call/g|p|g/", "a step of a call", "a step of a call")
	r.mustPipeline("outer", "p, g@latest, p", "")
	r.mustCall("outer", "/", "inside another", "inside another")

	r.mustPipeline("p", "g", "") // the first step answers with its received headers
	resp, err := r.Invoke(t.Context(), "p", &Request{Method: "GET", Path: "/headers", Headers: [][2]string{{"Host", "outside"}, {"X-A", "1"}, {"Connection", "close"}}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil || string(all) != "Host: outside\nX-A: 1\n" {
		t.Errorf("the first step was told %q, %v", all, err)
	}
	r.mustCall("p@1", "/", "of before", "of before")
	r.mustCall("p@latest", "/", "of now", "of now")

	r.stop()
	r.start(Config{})
	r.mustCall("p", "/", "later", "later")
	r.mustCall("outer", "/", "later", "later")
	f, err := r.Function("p")
	if err != nil || !slices.Equal(f.Config.Pipeline, []string{"g"}) || f.Latest != 2 || f.Invocations != 3 || f.Busy != 0 {
		t.Errorf("%+v, %v", f, err)
	}
	if slices.ContainsFunc(r.Sandboxes(true), func(s *live.Sandbox) bool { return s.Function == "p" || s.Function == "outer" }) {
		t.Error("a pipeline has a sandbox")
	}
	eventually(t, "the slots to be free", func() bool { n, waiting := r.slots.count(); return n == 0 && waiting == 0 })
	if err := r.RemoveFunction(t.Context(), "p"); err != nil {
		t.Error(err)
	}
}

// TestPipelineRefused: a pipeline that lacks a step, or contains itself, is not deployed.
func TestPipelineRefused(t *testing.T) {
	r := calls(t, Config{})
	r.mustPipeline("p", "g", "")
	r.mustPipeline("q", "f, p", "")
	r.mustPipeline("s", "q@1", "")
	for steps, want := range map[string]string{
		"p g, nobody": "there is no function nobody: deploy it first",
		"p other":     "there is no function other: deploy it first",
		"p g@77":      `function "g" has no revision "77"`,
		"p g, q":      "p is a step of itself: q → p",
		"p s, g":      "p is a step of itself: s → q@1 → p",
	} {
		name, steps, _ := strings.Cut(steps, " ")
		var field *template.FieldError
		if _, err := r.pipeline(name, steps, ""); !errors.As(err, &field) || field.Field != "pipeline" || !strings.HasPrefix(field.Message, want) {
			t.Errorf("%s: %v; want %q", steps, err, want)
		}
	}
	if _, err := r.Deploy(t.Context(), "f", r.imageOf("p"), DeployOptions{Replace: true}); err != nil {
		t.Error(err)
	}
	if _, err := r.Deploy(t.Context(), "g", r.imageOf("p"), DeployOptions{Replace: true}); err == nil {
		t.Error("a pipeline of g alone was deployed as g")
	}
}

// TestPipelineFails: the error of a pipeline names the failed step. After a step has run, the error
// is not a refusal.
func TestPipelineFails(t *testing.T) {
	r := calls(t, Config{})
	r.deploy("last", nil)
	r.mustPipeline("p", "g, last", "")
	r.mustPipeline("brief", "g, last", "resources: {timeout: 1s}\n")
	r.mustPipeline("p2", "p, g", "")
	for path, want := range map[string]string{
		"p /fail":  "function_error p → g|last: step 1, g: ",
		"p2 /exit": "function_crashed p2 → p → g|last: step 1, g: ",
	} {
		name, path, _ := strings.Cut(path, " ")
		_, _, err := r.call(t.Context(), name, path, "x")
		if code := failure.Of(err); err == nil || !strings.HasPrefix(string(code)+" "+err.Error(), want) {
			t.Errorf("%s%s: %s %v; want %q", name, path, code, err, want)
		}
	}
	resp, err := r.Invoke(t.Context(), "p", &Request{Method: "GET", Path: "/status", Query: "status=404&body=none"})
	if err != nil || resp.Status != 404 {
		t.Errorf("a step that does not succeed: %+v, %v", resp, err)
	}
	if err == nil {
		_ = resp.Body.Close()
	}
	for _, refused := range []error{ErrOverloaded, ErrEngineOverloaded, ErrDegraded, ErrClosed, &live.QuotaError{}, &UnknownError{}} {
		ev := &event{f: &function{program: program{logs: r.logsOf("p")}}, ctx: limited{Context: t.Context()}}
		first, second := ev.stepFailed(0, refused), ev.stepFailed(1, refused)
		missing := errors.Is(refused, os.ErrNotExist)
		if !missing && !errors.Is(first, refused) || failure.Of(second) != failure.Of(first) || errors.Is(second, refused) || missing && failure.Of(first) != "step_missing" {
			t.Errorf("%v: first %v (%s), then %v (%s)", refused, first, failure.Of(first), second, failure.Of(second))
		}
	}

	if _, _, err := r.call(t.Context(), "brief", "/hang", "x"); !errors.Is(err, ErrTimeout) {
		t.Errorf("a step that does not answer: %v", err)
	}
	if err := r.RemoveFunction(t.Context(), "last"); err != nil {
		t.Fatal(err)
	}
	_, _, err = r.call(t.Context(), "p2", "/", "x")
	if want := `p2 → p → g|last: there is no function "last": `; failure.Of(err) != "step_missing" || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("without its last step: %v, want %q", err, want)
	}
	eventually(t, "the slots to be free", func() bool { n, waiting := r.slots.count(); return n == 0 && waiting == 0 })
}

// TestPipelineLoop: a pipeline that contains itself after a change of revisions is refused, with
// the chain of names.
func TestPipelineLoop(t *testing.T) {
	r := calls(t, Config{})
	r.mustPipeline("a", "f", "")
	r.mustPipeline("b", "a", "")
	r.mustPipeline("b", "f", "")
	r.mustPipeline("a", "b", "")
	r.mustCall("a", "/", "fine", "fine")
	if _, err := r.Rollback(t.Context(), "b", "1"); err != nil {
		t.Fatal(err)
	}
	var loop *LoopError
	if _, _, err := r.call(t.Context(), "a", "/", "x"); !errors.As(err, &loop) || loop.Chain != "a → b → a" || failure.Of(err) != "loop" {
		t.Errorf("%v", err)
	}
}

// TestPipelineDrains: a stopping engine still runs the steps of a pipeline that has begun.
func TestPipelineDrains(t *testing.T) {
	r := calls(t, Config{})
	r.mustPipeline("p", "g, f", "")
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		resp, err := r.Invoke(t.Context(), "p", &Request{Method: "POST", Path: "/slurp", Body: read, Length: -1})
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			err = errors.Join(err, resp.Body.Close())
		}
		done <- err
	}()
	if _, err := write.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- r.Close(context.WithoutCancel(t.Context())) }()
	<-r.Closed()
	if _, _, err := r.call(t.Context(), "p", "/", "x"); !errors.Is(err, ErrClosed) {
		t.Errorf("another event: %v", err)
	}
	if err := errors.Join(write.Close(), <-done, <-closed); err != nil {
		t.Error(err)
	}
}

// TestPipelineElsewhere: another node applies pipelines and functions in any order.
func TestPipelineElsewhere(t *testing.T) {
	here := calls(t, Config{})
	registry := ownRegistry(t)
	here.mustPipeline("p", "g, f", "")
	records, err := here.Records()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"p", "f", "g"} {
		if _, err := here.Push(t.Context(), name+":"+here.imageOf(name).Version, registry+"/"+name+":1", nil, oci.PushOptions{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	here.stop()
	there := &rig{t: t, state: t.TempDir()}
	there.start(Config{})
	for _, name := range []string{"p", "f", "g"} {
		if _, _, err := there.Pull(t.Context(), registry+"/"+name+":1", "", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(records, func(a, b *Record) int { return strings.Compare(b.Name, a.Name) }) // p first
	for _, rec := range records {
		if strings.HasSuffix(rec.Name, ".red") {
			continue
		}
		if err := there.Apply(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		if rec.Name == "p" {
			if _, _, err := there.call(t.Context(), "p", "/", "x"); failure.Of(err) != "step_missing" {
				t.Errorf("before its steps: %v", err)
			}
		}
	}
	there.mustCall("p", "/", "there", "there")
}

// imageOf returns the current image of a function.
func (r *rig) imageOf(function string) *store.Image {
	r.t.Helper()
	f, err := r.Function(function)
	if err != nil {
		r.t.Fatal(err)
	}
	img, err := r.store.Image(string(f.Image))
	if err != nil {
		r.t.Fatal(err)
	}
	return img
}

func (r *rig) logsOf(function string) *live.Log { return (*r.functions.Load())[function].logs }
