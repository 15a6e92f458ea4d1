package testdaemon_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/client/functest"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// TestTemplateCases: every template and scaffold has readable tests; without tests the template
// would never be called.
func TestTemplateCases(t *testing.T) {
	for _, pattern := range []string{"../../templates/*/fret.yaml", "../../cmd/fre/scaffold/*/fret.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		for _, path := range found {
			if _, err := functest.Load(filepath.Dir(path), "x"); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestLoadCase(t *testing.T) {
	c, err := testdaemon.LoadCase("../../templates/python-hello", "other")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(testdaemon.Event{Method: "POST", Path: "/", Headers: map[string]string{}, Body: "Ada"}, c.Event); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	if err := c.Check(&testdaemon.Answer{Status: 200, Body: []byte(`{"hello":"Ada","function":"other"}`)}); err != nil {
		t.Error(err)
	}
	if err := c.Check(&testdaemon.Answer{Status: 200, Body: []byte(`{"hello":"Ada","function":"python-hello"}`)}); err == nil {
		t.Error("another function's answer passes")
	}
}
