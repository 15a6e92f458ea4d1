package daemon_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/fre-engine/fre/internal/daemon"
)

func TestExpect(t *testing.T) {
	hello := "hello"
	answer := func(status int, body string) *daemon.Answer {
		return &daemon.Answer{Status: status, Header: http.Header{"X-A": {"1"}}, Body: []byte(body)}
	}
	for _, c := range []struct {
		name   string
		expect daemon.Expect
		answer *daemon.Answer
		ok     bool
	}{
		{"all right", daemon.Expect{Status: 200, Body: &hello, Headers: map[string]string{"x-a": "1"}}, answer(200, "hello"), true},
		{"status", daemon.Expect{Status: 200, Body: &hello}, answer(500, "hello"), false},
		{"header", daemon.Expect{Status: 200, Headers: map[string]string{"x-a": "2"}}, answer(200, ""), false},
		{"missing header", daemon.Expect{Status: 200, Headers: map[string]string{"x-b": "2"}}, answer(200, ""), false},
		{"body", daemon.Expect{Status: 200, Body: &hello}, answer(200, "hello!"), false},
		{"part", daemon.Expect{Status: 200, BodyContains: []string{"el", "lo"}}, answer(200, "hello"), true},
		{"missing part", daemon.Expect{Status: 200, BodyContains: []string{"el", "x"}}, answer(200, "hello"), false},
		{"pattern", daemon.Expect{Status: 200, BodyMatches: `^\d+ \d+\n$`}, answer(200, "12 34\n"), true},
		{"no match", daemon.Expect{Status: 200, BodyMatches: `^\d+$`}, answer(200, "x"), false},
		{"json", daemon.Expect{Status: 200, BodyJSON: []byte(`{"a":1,"b":[2]}`)}, answer(200, ` {"b": [2], "a": 1}`), true},
		{"other json", daemon.Expect{Status: 200, BodyJSON: []byte(`{"a":1}`)}, answer(200, `{"a":2}`), false},
		{"no json", daemon.Expect{Status: 200, BodyJSON: []byte(`{"a":1}`)}, answer(200, `a`), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.expect.Check(c.answer); (err == nil) != c.ok {
				t.Errorf("got error %v, want ok %v", err, c.ok)
			}
		})
	}
}

// TestTemplateCases reads the test of every template: one without would never
// be called.
func TestTemplateCases(t *testing.T) {
	templates, err := filepath.Glob("../../templates/*/fret.yaml")
	if err != nil || len(templates) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	for _, path := range templates {
		if _, err := daemon.LoadCase(filepath.Dir(path)); err != nil {
			t.Error(err)
		}
	}
}

func TestLoadCaseIsStrict(t *testing.T) {
	for _, c := range []struct{ name, event, expect string }{
		{"unknown key", `{"metod": "GET"}`, `{"body": ""}`},
		{"nothing about the body", `{}`, `{"status": 200}`},
		{"no JSON", `hello`, `{"body": ""}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "test"), 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"event.json": c.event, "expect.json": c.expect} {
				if err := os.WriteFile(filepath.Join(dir, "test", name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := daemon.LoadCase(dir); err == nil {
				t.Errorf("got %+v, want an error", got)
			}
		})
	}
}
