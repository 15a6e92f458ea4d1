package report_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/report"
)

// check compares a written file with want.
func check(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestRaw(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there yet")
	at := time.Date(2026, 3, 1, 23, 4, 5, 0, time.FixedZone("east", 3600))
	path, err := report.Raw(dir, "start", at, map[string]int{"n": 1})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "start-20260301T220405Z.json"); path != want {
		t.Errorf("got %s, want %s", path, want)
	}
	check(t, path, "{\"n\":1}\n")
	if path, err := report.Raw(dir, "bad", at, math.NaN()); err == nil {
		t.Errorf("%s: a number that JSON has not: got no error", path)
	}
}

func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "docs", "start.md")
	if err := report.Page(path, "Cold starts", "start", "| table |\n"); err != nil {
		t.Fatal(err)
	}
	check(t, path, "# Cold starts\n\nWritten by `make bench-start`; `bench/start` describes the measurement.\n\n| table |\n")
	if err := report.Page("", "Cold starts", "start", ""); err != nil {
		t.Errorf("no page: %v", err)
	}
}
