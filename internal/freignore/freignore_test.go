package freignore

import "testing"

func TestIgnore(t *testing.T) {
	l, err := Parse([]byte("*.pyc\n/top\na/b\n**/cache/\n!keep.pyc\nx/**/y\r\n"))
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

// TestParseMark: patterns behind a byte order mark of UTF-16 count.
func TestParseMark(t *testing.T) {
	l, err := Parse([]byte("\xff\xfe*\x00.\x00p\x00y\x00c\x00\n\x00"))
	if err != nil || !l.Match("a.pyc", false) || l.Match("a.py", false) {
		t.Errorf("%v, %v", l, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("*.pyc\n!/a/**/b/\n# c", "a/x/b")
	f.Fuzz(func(_ *testing.T, text, path string) {
		if l, err := Parse([]byte(text)); err == nil {
			l.Match(path, true)
		}
	})
}
