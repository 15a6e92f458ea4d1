package python

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSpecifiers: The specifiers for a source distribution come from the request and from the
// resolver's words about other packages.
func TestSpecifiers(t *testing.T) {
	q, err := requestOf("r.txt", []byte("docopt>=0.5,<0.7; python_version > '3'\nDocopt (!=0.6.0)\nnum2words\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	words := "Because docopt==0.6.2 has no usable wheels and only docopt<=0.6.2 is available, we can conclude that docopt>=0.6.2 cannot be used.\n" +
		"And because num2words==0.5.13 depends on docopt>=0.6.2 and you require docopt>=0.5, we can conclude that your requirements are unsatisfiable."
	want := []string{">=0.5,<0.7", "!=0.6.0", ">=0.6.2", ">=0.5"}
	if diff := cmp.Diff(want, q.specifiers("docopt", words)); diff != "" {
		t.Error(diff)
	}
	if got := q.specifiers("num2words", "num2words==1"); got != nil {
		t.Errorf("got %q", got)
	}
	m := wantsSource.FindStringSubmatch("hint: Wheels are required for `docopt` because building from source is disabled for all packages (i.e., with `--no-build`)")
	if !slices.Contains(m, "docopt") {
		t.Errorf("got %q", m)
	}
}
