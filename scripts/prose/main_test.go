package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProse(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"good/a.go":         "// Package good " + strings.Repeat("opens the store and reads the index. ", 20) + "\npackage good\n",
		"bad/a.go":          "// Package bad " + strings.Repeat("does what it is that they want of the store. ", 20) + "\npackage bad\n",
		"bad/a_test.go":     "// " + strings.Repeat("what ", 200) + "\npackage bad\n",
		"short/a.go":        "// Package short is what it is.\npackage short\n",
		"bad/testdata/a.go": "// " + strings.Repeat("what ", 200) + "\npackage a\n",
		"docs/page.md":      strings.Repeat("The engine reads the file. ", 40) + "\n```\n" + strings.Repeat("what ", 200) + "\n```\n",
		"docs/vague.md":     strings.Repeat("It is what the engine reads there. ", 40),
		"bench/docs/x.md":   strings.Repeat("The engine reads the file. ", 40),
	} {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rates, err := measure(root)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for name, r := range rates {
		got[name] = r.per100()
	}
	if diff := cmp.Diff(map[string]float64{"good": 0, "bad": 39.6, "bad/*_test.go": 100, "bench/docs/x.md": 0, "docs/page.md": 0, "docs/vague.md": 42.9}, got); diff != "" {
		t.Errorf("rates: -want +got:\n%s", diff)
	}
	for _, tt := range []struct {
		name   string
		limits string
		want   []string // beginnings of the lines
	}{
		{"none", "", []string{"bad: 39.6 vague words in 100, at most 6.0", "bad/*_test.go: 100", "docs/vague.md: 42.9"}},
		{"as they are", "39.6 bad\n100 bad/*_test.go\n42.9 docs/vague.md\n", nil},
		{"too high", "44.0 bad\n100 bad/*_test.go\n42.9 docs/vague.md\n", []string{"bad: the limit of 44.0 is above the rate of 39.6"}},
		{"too low", "39.6 bad\n100 bad/*_test.go\n40.0 docs/vague.md\n", []string{"docs/vague.md: 42.9 vague words in 100, at most 40.0"}},
		{"not needed", "39.6 bad\n100 bad/*_test.go\n42.9 docs/vague.md\n7.0 good\n9.0 gone\n", []string{"good: the limit of 7.0 is above", "gone: no such package or page"}},
	} {
		known, err := limits(tt.limits)
		if err != nil {
			t.Fatal(err)
		}
		list := faults(rates, known)
		if len(list) != len(tt.want) {
			t.Errorf("%s: %q", tt.name, list)
			continue
		}
		for i, want := range tt.want {
			if !strings.HasPrefix(list[i], want) {
				t.Errorf("%s: %q, want %q", tt.name, list[i], want)
			}
		}
	}
	if got := lowered(rates, map[string]float64{"bad": 50, "docs/vague.md": 40}, false); got != "39.6 bad\n40.0 docs/vague.md\n" {
		t.Errorf("lowered: %q", got)
	}
	if _, err := limits("high bad\n"); err == nil {
		t.Error("a bad line is taken")
	}
}
