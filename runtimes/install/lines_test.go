package install

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A tool's output arrives in pieces of any size. A line that is too long is left out.
func TestSaid(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, size := range []int{1, 3, 1 << 20} {
		var got []string
		l := &lines{said: func(line string) { got = append(got, line) }}
		text := "1\n\n23\n" + long + "\n" + long + "x\n4\nnot ended"
		if _, err := io.CopyBuffer(struct{ io.Writer }{l}, struct{ io.Reader }{strings.NewReader(text)}, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"1", "", "23", long, "4"}, got); diff != "" {
			t.Errorf("%d bytes at once (-want +got):\n%s", size, diff)
		}
		if len(l.rest) > maxLine {
			t.Errorf("keeps %d bytes", len(l.rest))
		}
	}
}
