package runtimes_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/runtimes/python"
)

// A function sees the same process surroundings in a parked process and in one started for it.
func TestParkedSurroundings(t *testing.T) {
	type surroundings struct {
		Env              map[string]string
		Cwd              string
		Argv, Path       []string
		Hour             int
		Child            string
		sortedChildLines []string
	}
	for _, l := range languages(t) {
		if l.parked || l.forked || l.name == "go" {
			continue
		}
		var got [2]surroundings
		for n := range got {
			l.parked = n == 1
			i := l.start(t, "all.surroundings", "TZ=Asia/Tokyo", "A=b=c", "EMPTY=", "FRE_CONCURRENCY=2")
			a, err := i.invoke(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(a.Body), &got[n]); err != nil {
				t.Fatalf("%v in %s", err, a.Body)
			}
			got[n].sortedChildLines = slices.Sorted(strings.SplitSeq(got[n].Child, "\n"))
			got[n].Child = ""
		}
		if diff := cmp.Diff(got[0], got[1], cmp.AllowUnexported(surroundings{})); diff != "" {
			t.Errorf("%s: direct (-) and parked (+) differ:\n%s", l.name, diff)
		}
		if got[1].Env["A"] != "b=c" || got[1].Hour != 9 || len(got[1].sortedChildLines) < 5 {
			t.Errorf("%s: %+v", l.name, got[1])
		}
	}
}

// The function's own module takes precedence over a module of the standard library that the parked
// bootstrap had loaded.
func TestParkedShadow(t *testing.T) {
	dir, err := filepath.Abs("testdata/python/shadow")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range languages(t) {
		if l.name != "python" {
			continue
		}
		i := l.start(t, "main.handle", "PYTHONPATH="+dir) // the last one counts
		got, err := i.invoke(t.Context(), "")
		if err != nil || got.Body != "True" {
			t.Errorf("%s: got %q, %v: not the function's own json", l, got.Body, err)
		}
	}
}

// A parked bootstrap loads its modules ahead; a waiting function's bootstrap does not. The
// function's own modules may have the same names.
func TestBootstrapModules(t *testing.T) {
	dir := t.TempDir()
	var names []string
	for path := range (python.Runtime{}).Bootstrap() {
		if name, ok := strings.CutPrefix(path, "_fre/"); ok && name != "__init__.py" {
			names = append(names, strings.TrimSuffix(name, ".py"))
		}
	}
	slices.Sort(names)
	files := map[string]string{"main.py": `
import sys, ` + strings.Join(names, ", ") + `
def handle(event, context):
    own = all(sys.modules[name].own for name in "` + strings.Join(names, " ") + `".split())
    return "%s %s" % (own, " ".join(sorted(name for name in sys.modules if name.startswith("_fre"))))
`}
	for _, name := range names {
		files[name+".py"] = "own = True\n"
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range languages(t) {
		if l.name != "python" {
			continue
		}
		want := "True _fre"
		for _, name := range names {
			if name == "calling" { // loaded by the first call
				continue
			}
			if contract := strings.Contains(" asgi awslambda contracts wsgi ", " "+name+" "); l.parked && !strings.HasPrefix(name, "fork") && name != "asgi" && name != "wsgi" || l.forked && name != "park" && !contract {
				want += " _fre." + name
			}
		}
		got, err := l.start(t, "main.handle", "PYTHONPATH="+dir).invoke(t.Context(), "")
		if err != nil || got.Body != want {
			t.Errorf("%s: got %q, %v, want %q", l, got.Body, err, want)
		}
	}
}

// TestParkedEngineGone: A parked instance ends by itself if the engine closes the channel.
func TestParkedEngineGone(t *testing.T) {
	for _, l := range languages(t) {
		if !l.parked {
			continue
		}
		i := l.startRaw(t, "")
		if _, err := io.ReadFull(i.raw, make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
		_ = i.raw.Close()
		<-i.exited
		if code := i.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s: exit status %d", l, code)
		}
	}
}

// TestMalformedLoad: An invalid first frame ends a parked bootstrap.
func TestMalformedLoad(t *testing.T) {
	for _, l := range languages(t) {
		if !l.parked {
			continue
		}
		for name, raw := range map[string]string{
			"INVOKE":     string(rawHeader(3, 6)) + "\x02\x00\x00\x00{}",
			"STOP":       string(rawHeader(10, 0)),
			"no JSON":    string(rawHeader(12, 1)) + "{",
			"no object":  string(rawHeader(12, 1)) + "7",
			"no handler": string(rawHeader(12, 20)) + `{"env":{},"dir":"/"}`,
			"no env":     string(rawHeader(12, 27)) + `{"handler":"a.b","dir":"/"}`,
		} {
			i := l.startRaw(t, "")
			if _, err := io.ReadFull(i.raw, make([]byte, 16)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(i.raw, raw); err != nil {
				t.Fatal(err)
			}
			<-i.exited
			if code := i.cmd.ProcessState.ExitCode(); code != 70 {
				t.Errorf("%s %s: exit status %d, want 70", l, name, code)
			}
		}
	}
}

// BenchmarkParked measures the time from LOAD to READY.
func BenchmarkParked(b *testing.B) {
	for _, l := range languages(b) {
		if !l.parked {
			continue
		}
		b.Run(l.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				i := l.startRaw(b, "all.text")
				i.Conn = channel.NewConn(i.raw, channel.Config{Parked: true})
				if err := i.Parked(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := i.Load(b.Context(), i.load); err != nil {
					b.Fatal(err)
				}
				if _, err := i.Ready(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				_ = i.Close()
				<-i.exited
				b.StartTimer()
			}
		})
	}
}
