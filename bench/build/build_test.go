package main

import (
	"strings"
	"testing"
	"time"
)

func TestMarkdown(t *testing.T) {
	times := func(milliseconds ...int) (all []time.Duration) {
		for _, n := range milliseconds {
			all = append(all, time.Duration(n)*time.Millisecond)
		}
		return all
	}
	r := &result{
		Packages: []*lists{{
			Site: "PyPI", Packages: 24,
			Cold: []*series{{Name: "fre build", Times: times(3000)}, {Name: "uv pip install", Times: times(2000, 4000, 5000)}},
			Warm: []*series{{Name: "fre build", Times: times(300)}, {Name: "uv pip install", Times: times(600)}},
		}},
		Reuse: []*reuse{{
			Name: "f", Second: &series{Times: times(50, 60, 90)}, Redeploy: &series{Times: times(150)}, ImageBytes: 50e6, NewBytes: 250e3,
		}},
		Imports: &imports{FRE: &series{Name: "FRE's tree", Times: times(100)}, Pip: &series{Name: "pip's", Times: times(125)}},
	}
	text := r.markdown()
	for _, want := range []string{
		"## PyPI: 24 packages",
		"| cold: uv pip install | 3 | 4.00 | 5.00 | 0.75 |",
		"| warm: uv pip install | 1 | 0.60 | 0.60 | 0.50 |",
		"| f | 60 | 90 | 250.0 | 0.50 % | 150 | 150 |",
		"| pip's | 1 | 125.0 | 0.80 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
