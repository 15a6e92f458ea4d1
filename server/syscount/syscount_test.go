package syscount

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

const sample = `# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
             fre-20655   [001] .....  1294.452451: sys_dup2(oldfd: 0xb, newfd: 1)
 a b: sys_ (-20656   [000] .....  1294.452455: sys_close(fd: 0xb)
CPU:1 [LOST 3 EVENTS]
             fre-20655   [001] .....  1294.452451: sys_close(fd: 3)
             fre-20655   [001] .....  1294.452451: sys_close -> 0x0
`

func TestParse(t *testing.T) {
	long := "fre-1 [000] 1.2: sys_write(buf: " + strings.Repeat("x", 10_000) + ": sys_read()\n"
	for _, test := range []struct {
		name, text string
		want       []Count
	}{
		{"nothing", "", []Count{}},
		{"a trace", sample, []Count{{"close", 1}, {"dup2", 1}}},
		{"a long line counts once", long + long, []Count{{"write", 2}}},
		{"without an end", "x: sys_read(", []Count{{"read", 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parse(strings.NewReader(test.text))
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("parse(%q): error %v, (-want +got)\n%s", test.text, err, diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Fuzz(func(t *testing.T, text []byte) {
		counts, err := parse(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		var all int64
		for _, c := range counts {
			if c.Name == "" || c.Calls < 1 {
				t.Errorf("%q: a call %q was made %d times", text, c.Name, c.Calls)
			}
			all += c.Calls
		}
		if lines := int64(bytes.Count(text, []byte("\n")) + 1); all > lines {
			t.Errorf("%q: %d calls in %d lines", text, all, lines)
		}
	})
}

// The count has the calls of every thread of the process, excludes calls of neighbours, and leaves
// no files in tracefs.
func TestCount(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	const times = 500
	c, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { // may run on a new thread
		for range times {
			unix.Getppid()
		}
		done <- nil
	}()
	for range times {
		unix.Getppid()
	}
	<-done
	counts, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for _, c := range counts {
		found[c.Name] = c.Calls
	}
	if found["getppid"] != 2*times {
		t.Errorf("getppid was made %d times, counted %d", 2*times, found["getppid"])
	}
	if left := instances(t); len(left) > 0 {
		t.Errorf("left in tracefs: %q", left)
	}
}

// instances lists this process's instances in tracefs, which tests of other packages use at the
// same time.
func instances(t *testing.T) (names []string) {
	t.Helper()
	tracefs, err := mount()
	if err != nil {
		t.Fatal(err)
	}
	defer tracefs.Close()
	found, err := fs.ReadDir(tracefs.FS(), "instances")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if strings.HasPrefix(f.Name(), fmt.Sprintf("fre-%d-", os.Getpid())) {
			names = append(names, f.Name())
		}
	}
	return names
}

// An incomplete count is an error.
func TestOverrun(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	c, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.write("buffer_size_kb", "8"); err != nil {
		t.Fatal(err)
	}
	for range 100_000 {
		unix.Getppid()
	}
	if counts, err := c.Stop(); !errors.Is(err, ErrOverrun) {
		t.Errorf("got %v, error %v, want %v", counts, err, ErrOverrun)
	}
}
