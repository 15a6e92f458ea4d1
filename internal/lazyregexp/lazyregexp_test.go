package lazyregexp

import "testing"

// TestNew: an expression gives the same answers as package regexp. In a test program a malformed
// expression panics at once.
func TestNew(t *testing.T) {
	r := New(`(a+)(b?)`)
	if r.String() != `(a+)(b?)` || !r.MatchString("xaab") || r.MatchString("x") || r.FindString("xaab") != "aab" ||
		r.FindStringSubmatch("xaab")[1] != "aa" || len(r.FindAllStringSubmatch("a aab", -1)) != 2 || r.ReplaceAllString("aab c", "$1") != "aa c" {
		t.Error("not what package regexp says")
	}
	defer func() {
		if recover() == nil {
			t.Error("a wrong expression passes")
		}
	}()
	New(`(`)
}
