package runtimes_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
)

// TestLockOfEverySite: a lock file with the sections of all sites, written by an earlier FRE, has the
// same bytes after a round trip.
func TestLockOfEverySite(t *testing.T) {
	text, err := os.ReadFile("testdata/lock/fret.lock")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := image.ParseLock(image.LockFile, text, runtimes.Sites())
	if err != nil {
		t.Fatal(err)
	}
	again, err := lock.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), string(again)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestLockErrors: a site refuses a section that it would not write.
func TestLockErrors(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"short hash", `{"version":1,"pip":{"request":["a"],"packages":[{"name":"a","version":"1","hashes":["sha256:00"]}]}}`, `bad hash "sha256:00"`},
		{"no hash", `{"version":1,"pip":{"request":["a"],"packages":[{"name":"a","version":"1","hashes":[]}]}}`, "has no hash"},
		{"option as a name", `{"version":1,"pip":{"request":["a"],"packages":[{"name":"-r","version":"1","hashes":[]}]}}`, "bad package"},
		{"source elsewhere", `{"version":1,"pip":{"request":["a"],"packages":[{"name":"a","version":"1","hashes":["sha256:` + strings.Repeat("0", 64) + `"],"source":"../a-1.tar.gz"}]}}`, "bad source"},
		{"built with nothing", `{"version":1,"pip":{"request":["a"],"packages":[{"name":"a","version":"1","hashes":["sha256:` + strings.Repeat("0", 64) + `"],"requires":[{"name":"b","version":"1","hashes":["sha256:` + strings.Repeat("0", 64) + `"]}]}]}}`, "is not built"},
		{"built with what is built", `{"version":1,"pip":{"request":["a"],"packages":[{"name":"a","version":"1","hashes":["sha256:` + strings.Repeat("0", 64) + `"],"source":"a-1.zip","requires":[{"name":"b","version":"1","hashes":["sha256:` + strings.Repeat("0", 64) + `"],"source":"b-1.zip"}]}]}}`, "is a source distribution"},
		{"built with something bad", `{"version":1,"pip":{"request":["a"],"packages":[{"name":"a","version":"1","hashes":["sha256:` + strings.Repeat("0", 64) + `"],"source":"a-1.zip","requires":[{"name":"b","version":"1","hashes":[]}]}]}}`, "build requirement: package b 1 has no hash"},
		{"host", `{"version":1,"npm":{"request":["a"],"package_lock":{"packages":{"a":{"resolved":"https://h/"}}}}}`, "names no hosts"},
		{"composer name", `{"version":1,"composer":{"request":["a/b"],"packages":[{"name":"../b","version":"1","hashes":["sha256:` + strings.Repeat("0", 64) + `"]}]}}`, "bad package"},
		{"composer hash", `{"version":1,"composer":{"request":["a/b"],"packages":[{"name":"a/b","version":"1","hashes":[]}]}}`, "want one hash"},
		{"no object", `{"version":1,"npm":{"request":["a"],"package_lock":[]}}`, "not an object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := image.ParseLock(image.LockFile, []byte(c.src), runtimes.Sites())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "delete the file to resolve again") {
				t.Errorf("%s:\ngot  %v\nwant %s", c.src, err, c.want)
			}
		})
	}
}

// section returns a site's section of a lock, nil without one.
func section[S image.Section](l *image.Lock, site string) S {
	s, _ := l.Sites[site].(S)
	return s
}

// lockOf returns a lock with one section.
func lockOf(site string, s image.Section) *image.Lock {
	return &image.Lock{Sites: map[string]image.Section{site: s}}
}

// FuzzLock: a lock with sections of the real sites is refused, or has the same bytes after a second
// round trip.
func FuzzLock(f *testing.F) {
	text, err := os.ReadFile("testdata/lock/fret.lock")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"pip":{"request":null,"packages":null},"npm":{"request":[""],"package_lock":null}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		lock, err := image.ParseLock(image.LockFile, src, runtimes.Sites())
		if err != nil {
			return
		}
		once, err := lock.Encode()
		if err != nil {
			t.Fatalf("%q: %v", src, err)
		}
		again, err := image.ParseLock(image.LockFile, once, runtimes.Sites())
		if err != nil {
			t.Fatalf("%q: own output refused: %v", src, err)
		}
		if twice, err := again.Encode(); err != nil || string(twice) != string(once) {
			t.Errorf("%q: %s then %s (%v)", src, once, twice, err)
		}
	})
}
