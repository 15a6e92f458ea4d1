package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// table records its rows, or refuses them.
type table struct {
	mu      sync.Mutex
	refuses error
	told    []*Record
	images  []store.Digest
}

func (t *table) Prepare(_ context.Context, img *store.Image) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.images = append(t.images, img.Digest)
	return t.refuses
}

func (t *table) Commit(_ context.Context, r *Record) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refuses == nil {
		t.told = append(t.told, r)
	}
	return t.refuses
}

// A deployment of one engine applies unchanged on another engine. A change that the table refuses
// is not made.
func TestApply(t *testing.T) {
	r := open(t)
	r.stop()
	tab := &table{}
	r.start(Config{Table: tab})
	r.revise("one", DeployOptions{})
	r.revise("two", DeployOptions{})
	if _, err := r.SetAliases(t.Context(), "f", map[string]string{"stable": "1"}, nil); err != nil {
		t.Fatal(err)
	}
	if len(tab.told) != 3 || len(tab.images) != 2 {
		t.Fatalf("the table was told %d records and %d images, want 3 and 2", len(tab.told), len(tab.images))
	}
	rec := tab.told[2]
	if rec.Name != "f" || rec.Serving != 2 || len(rec.Images) != 2 || rec.Front.Tenant != template.DefaultTenant {
		t.Errorf("record %+v", rec)
	}
	if err := r.RemoveFunction(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	if last := tab.told[len(tab.told)-1]; !last.Removed || last.Name != "f" {
		t.Errorf("the table was told %+v of a removal", last)
	}
	told := len(tab.told)
	for range 2 { // applying the current record changes nothing
		if err := r.Apply(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := r.mark("f"); got != "two" {
		t.Errorf("applied: %q answers, want two", got)
	}
	if got, resp := r.mark("f@stable"); got != "one" || resp.Revision != "1" {
		t.Errorf("applied: the alias is %q of revision %s", got, resp.Revision)
	}
	now, err := r.Records()
	if err != nil || len(now) != 1 || string(now[0].Spec) != string(rec.Spec) {
		t.Errorf("records %v (%v), want %s", now, err, rec.Spec)
	}
	if err := r.Apply(t.Context(), tab.told[0]); err != nil { // an earlier record: the other revision is gone
		t.Fatal(err)
	}
	if got, _ := r.mark("f"); got != "one" {
		t.Errorf("an earlier record: %q answers", got)
	}
	if len(tab.told) != told {
		t.Error("the table is told what it said itself")
	}
	tab.refuses = errors.New("cut off")
	if _, err := r.SetAliases(t.Context(), "f", map[string]string{"x": "1"}, nil); !errors.Is(err, tab.refuses) {
		t.Errorf("an alias that the table refuses: %v", err)
	}
	if _, err := r.Rollback(t.Context(), "f", "x"); !errors.As(err, new(*UnknownError)) {
		t.Errorf("an alias that was refused is there: %v", err)
	}
	if err := r.RemoveFunction(t.Context(), "f"); !errors.Is(err, tab.refuses) {
		t.Errorf("a removal that the table refuses: %v", err)
	}
	if _, err := r.Function("f"); err != nil {
		t.Errorf("a removal that was refused: %v", err)
	}
	if err := errors.Join(r.Withdraw(t.Context(), "f"), r.Withdraw(t.Context(), "f")); err != nil {
		t.Error(err)
	}
	if _, err := r.Function("f"); err == nil {
		t.Error("what another node has removed is there")
	}
	lost := *rec
	lost.Spec = json.RawMessage(strings.ReplaceAll(string(rec.Spec), string(rec.Images[0]), "sha256:"+strings.Repeat("0", 64)))
	if err := r.Apply(t.Context(), &lost); err == nil {
		t.Error("a record whose image is not here is in force")
	}
}

// FuzzRecord: a record from another node is refused, or can be served.
func FuzzRecord(f *testing.F) {
	for _, spec := range []string{
		`{"template":"f","version":"1","tenant":"default","revisions":[{"number":1,"image":"sha256:00","template":"f","version":"1","deployed":"2026-01-01T00:00:00Z"}],"last":1,"traffic":{"weights":[{"revision":1,"percent":100}]}}`,
		`{"tenant":"default","last":1}`, `{"tenant":"acme"}`, `{}`, `null`, `{"tenant":"default","temporary":true}`, `{"other":1}`,
	} {
		f.Add("f", spec)
		f.Add("f.acme", spec)
	}
	f.Fuzz(func(t *testing.T, name, raw string) {
		spec, err := checkRecord(&Record{Name: name, Spec: json.RawMessage(raw)})
		if err != nil {
			return
		}
		if main := spec.keptRevision(spec.main()); main == nil || !slices.ContainsFunc(spec.Revisions, func(r Revision) bool { return spec.serves(r.Number) }) {
			t.Errorf("%s: %s is taken, and serves nothing", name, raw)
		}
		if _, err := spec.record(name); err != nil {
			t.Error(err)
		}
	})
}
