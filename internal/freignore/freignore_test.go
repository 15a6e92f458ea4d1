package freignore

import "testing"

func TestIgnore(t *testing.T) {
	l, err := Parse("*.pyc\n/top\na/b\n**/cache/\n!keep.pyc\nx/**/y\r\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		dir  bool
		want bool
	}{
		{"m.pyc", false, true},
		{"d/m.pyc", false, true},
		{"d/keep.pyc", false, false},
		{"top", false, true},
		{"d/top", false, false},
		{"a/b", true, true},
		{"c/a/b", false, false},
		{"cache", true, true},
		{"cache", false, false},
		{"d/e/cache", true, true},
		{"x/y", false, true},
		{"x/1/2/y", false, true},
		{"x", true, false},
	} {
		if got := l.Match(c.path, c.dir); got != c.want {
			t.Errorf("Match(%q, dir %v) = %v, want %v", c.path, c.dir, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("*.pyc\n!/a/**/b/\n# c", "a/x/b")
	f.Fuzz(func(_ *testing.T, text, path string) {
		if l, err := Parse(text); err == nil {
			l.Match(path, true)
		}
	})
}
