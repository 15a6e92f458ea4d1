package java

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
)

// TestParseClassPath: Maven's class path gives the coordinates of each jar, once.
func TestParseClassPath(t *testing.T) {
	got, err := parseClassPath("/run/org/a/b/1.0/b-1.0.jar:/run/org/a/c/2/c-2-linux-x86_64.jar:/run/org/a/b/1.0/b-1.0.jar\n", "/run")
	if err != nil {
		t.Fatal(err)
	}
	want := []jarFile{{"org.a:b", "1.0", "org/a/b/1.0/b-1.0.jar"}, {"org.a:c:linux-x86_64", "2", "org/a/c/2/c-2-linux-x86_64.jar"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(jarFile{})); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseClassPath(f *testing.F) {
	for _, s := range []string{
		"", "/run/org/a/b/1.0/b-1.0.jar", "/run/../../etc/x/1/x-1.jar", "/etc/a/b/1/b-1.jar", "/run/a/b/1-SNAPSHOT/b-1-20200101.1.jar",
		"/run/a/b/1/b-1-.jar", "/run/a/b/1/b-1.pom", "/run/a/b/1/b-1\n.jar", "/run//b/1/b-1.jar",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		jars, err := parseClassPath(s, "/run")
		if err != nil {
			return
		}
		for _, j := range jars {
			if strings.Contains(j.path, "..") && strings.Contains("/"+j.path+"/", "/../") || strings.HasPrefix(j.path, "/") || strings.Count(j.name, ":") > 2 || j.version == "" {
				t.Errorf("%q: %+v", s, j)
			}
		}
	})
}

// TestBenchLinks: The engine follows no link that a project's program left on the bench.
func TestBenchLinks(t *testing.T) {
	b, err := install.NewBench(&image.Step{Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	if err := errors.Join(
		os.Symlink(outside, filepath.Join(b.Dir, "jars")), os.Symlink(outside, filepath.Join(b.Dir, "repository")), os.Chmod(outside, 0o700),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"jars", "jars/0"} {
		if err := b.Mkdir(name); err == nil {
			t.Errorf("made %s", name)
		}
	}
	if r, err := (&site{}).repository(b, false); err == nil {
		t.Errorf("opened %s", r.Name())
	}
	info, err := os.Stat(outside)
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 || info.Mode().Perm() != 0o700 {
		t.Errorf("outside: %v, %v, %v", entries, info.Mode(), err)
	}
}
