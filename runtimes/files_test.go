package runtimes_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/channel"
)

// filesDir is a directory in memory, like /tmp in a sandbox.
func filesDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fre-files-") //nolint:usetesting // in memory
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// readFile reads an answer, through its file if it has one, and reports whether it has.
func readFile(t *testing.T, r *channel.Reply) (body string, file bool) {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	if file = r.File != nil; file {
		again := make([]byte, r.Length)
		if _, err := r.File.ReadAt(again, r.Offset); err != nil || string(again) != string(b) {
			t.Errorf("the file's %d bytes are not the body's %d: %v", len(again), len(b), err)
		}
	}
	if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	return string(b), file
}

// TestLargeAnswers: Each bootstrap gives large answers in immutable files if the engine takes files
// and the memory suffices. The answers are complete either way.
func TestLargeAnswers(t *testing.T) {
	const memory = 64 << 20 // at most a 32nd of the memory goes into a file
	large := strings.Repeat("0123456789abcdef", 3<<20/16)
	dir := filesDir(t)
	for _, l := range languages(t) {
		for _, files := range []string{dir, "/none", ""} {
			t.Run(l.String()+" "+map[string]string{dir: "files", "/none": "no room", "": "no files"}[files], func(t *testing.T) {
				i := l.start(t, "all.echo", "FRE_FILES="+files, fmt.Sprint("FRE_MEMORY_BYTES=", memory), "FRE_CONCURRENCY=4")
				for _, size := range []int{64 << 10, 256 << 10, 256<<10 + 1, 1 << 20, 2 << 20, 3 << 20} {
					r, err := i.Invoke(t.Context(), &channel.Invocation{Request: channel.Request{Path: "/p", Body: strings.NewReader(large[:size])}})
					if err != nil {
						t.Fatal(err)
					}
					got, file := readFile(t, r)
					if got != large[:size] || r.Status != 201 {
						t.Errorf("%d bytes: %d came back, status %d", size, len(got), r.Status)
					}
					takes := files == dir || files != "" && l.is("python go") // a descriptor needs no directory
					if want := takes && 256<<10 < size && size <= memory/32; file != want && os.Geteuid() == 0 {
						t.Errorf("%d bytes: in an immutable file: %v, want %v", size, file, want)
					}
				}
			})
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestFileAnswers: A handler may return an open file; equal large answers may share one file.
func TestFileAnswers(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 1<<16)
	for _, l := range languages(t) {
		for _, tt := range []struct {
			handler, only string
			want          answer
			immutable     bool
		}{
			{"large", "python go", answer{200, typed("application/octet-stream"), large}, true},
			{"large_text", "python", answer{200, typed("text/plain; charset=utf-8"), strings.Repeat("ü", 512<<10)}, true},
			{"opened", "python go", answer{203, typed("x/y"), large}, false},
			{"opened_pipe", "python go", answer{200, typed("application/octet-stream"), "from a pipe"}, false},
		} {
			if !l.is(tt.only) {
				continue
			}
			for _, takes := range []string{"FRE_FILES=/tmp FRE_KEPT_FILES=8", "FRE_FILES=/tmp", ""} {
				files, keeps := takes != "", strings.Contains(takes, "KEPT")
				t.Run(strings.Join([]string{l.String(), tt.handler, takes}, " "), func(t *testing.T) {
					i := l.start(t, "all."+tt.handler, strings.Fields(takes)...)
					seen := map[*os.File]bool{}
					for range 5 { // equal answers may share a file
						r, err := i.Invoke(t.Context(), &channel.Invocation{})
						if err != nil {
							t.Fatal(err)
						}
						body, file := readFile(t, r)
						if seen[r.File] = true; file != (tt.immutable && files) {
							t.Errorf("in an immutable file: %v", file)
						}
						if got := (answer{r.Status, r.Headers, body}); !cmp.Equal(tt.want, got) {
							t.Errorf("got %d, %v and %d bytes; want %d, %v and %d", got.Status, got.Headers, len(got.Body), tt.want.Status, tt.want.Headers, len(tt.want.Body))
						}
					}
					// Python detects equal bytes at the second answer.
					if keeps && tt.handler == "large" && len(seen) > 2 {
						t.Errorf("%d files were opened for the same answer", len(seen))
					}
				})
			}
		}
	}
}
