package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/template"
)

var (
	hashA = "sha256:" + strings.Repeat("a", 64)
	hashB = "sha256:" + strings.Repeat("b", 64)
)

// lockSites are the sites of sampleLock, in the order of the file.
func lockSites() []Site { return []Site{emptySite{name: "shop"}, emptySite{name: "depot"}} }

func sampleLock() *Lock {
	return &Lock{
		Version: 1,
		Base:    LockedBase{Name: "toy", Packages: map[string]string{"toy3": "3.11.2-1+b1", "libc6": "2.36-9"}},
		Sites: map[string]Section{
			"shop":  &LockedPackages{Request: []string{"zeta>=1", "Alpha_b"}, Packages: []LockedPackage{{Name: "zeta", Version: "3!1.2+local", Hashes: []string{hashB}}}},
			"depot": &LockedPackages{Request: []string{"x@>=1 <2"}, Packages: []LockedPackage{}},
		},
		sites: siteNames(lockSites()),
	}
}

const sampleLockText = `{
  "version": 1,
  "base": {
    "name": "toy",
    "packages": {
      "libc6": "2.36-9",
      "toy3": "3.11.2-1+b1"
    }
  },
  "shop": {
    "request": [
      "zeta>=1",
      "Alpha_b"
    ],
    "packages": [
      {
        "name": "zeta",
        "version": "3!1.2+local",
        "hashes": [
          "HASHB"
        ]
      }
    ]
  },
  "depot": {
    "request": [
      "x@>=1 <2"
    ],
    "packages": []
  }
}
`

// TestLockFile: A written lock reads back unchanged.
func TestLockFile(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if got, err := ReadLock(dir, lockSites()); got != nil || err != nil {
		t.Fatalf("no file: got %v, %v", got, err)
	}
	if err := WriteLock(dir, sampleLock()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir.Name(), LockFile))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(sampleLockText, "HASHB", hashB)
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	before, err := dir.Stat(LockFile)
	if err != nil {
		t.Fatal(err)
	}
	read, err := ReadLock(dir, lockSites())
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteLock(dir, read); err != nil {
		t.Fatal(err)
	}
	if after, err := dir.Stat(LockFile); err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged lock was written again (%v)", err)
	}
	list, err := os.ReadDir(dir.Name())
	if err != nil || len(list) != 1 {
		t.Errorf("left behind: %v %v", list, err)
	}
}

// TestLockAnswersRequest: A section of a lock applies only to the exact request that made it.
func TestLockAnswersRequest(t *testing.T) {
	l := newLock(lockSites(), LockedBase{}, sampleLock())
	l.prune(&template.Template{Packages: template.Packages{"shop": {List: []string{"zeta>=1", "Alpha_b"}}, "depot": {List: []string{"x@2"}}}})
	if l.Sites["shop"] == nil {
		t.Error("the section of shop answers the same request")
	}
	if l.Sites["depot"] != nil {
		t.Error("the section of depot answers another request")
	}
	if l := newLock(lockSites(), LockedBase{}, nil); len(l.Sites) != 0 {
		t.Error("no lock answers nothing")
	}
}

// TestParseLockErrors: The error for a damaged lock names the place.
func TestParseLockErrors(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"empty", "", "fret.lock:1:1: EOF"},
		{"syntax", "{\n  \"version\": 1,\n  oops\n}", "fret.lock:3:3: invalid character 'o'"},
		{"unknown member", `{"version":1,"extra":2}`, `unknown field "extra"`},
		{"wrong type", `{"version":"1"}`, "cannot unmarshal string"},
		{"later version", `{"version":2}`, "unknown version 2 of the lock format"},
		{"wrong section", `{"version":1,"shop":2}`, "shop: json: cannot unmarshal number"},
		{"unknown member of a section", `{"version":1,"shop":{"extra":2}}`, `unknown field "extra"`},
		{"short hash", `{"version":1,"shop":{"request":["a"],"packages":[{"name":"a","version":"1","hashes":["sha256:00"]}]}}`, "want one hash"},
		{"no hash", `{"version":1,"shop":{"request":["a"],"packages":[{"name":"a","version":"1","hashes":[]}]}}`, "want one hash"},
		{"option as a name", `{"version":1,"shop":{"request":["a"],"packages":[{"name":"-r","version":"1","hashes":[]}]}}`, "bad package"},
		{"build in a build", `{"version":1,"build":{"version":1,"build":{"version":1}}}`, "holds another build"},
		{"two values", `{"version":1} {}`, "several JSON values"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseLock(LockFile, []byte(c.src), lockSites())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "delete the file to resolve again") {
				t.Errorf("%s:\ngot  %v\nwant %s", c.src, err, c.want)
			}
		})
	}
}

// FuzzParseLock: The parser of locks accepts or refuses any input without a panic.
func FuzzParseLock(f *testing.F) {
	data, err := sampleLock().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":1,"shop":{"request":null,"packages":null}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		l, err := ParseLock("f", src, lockSites())
		if err != nil {
			_ = err.Error()
			return
		}
		once, err := l.Encode()
		if err != nil {
			t.Fatalf("%q: %v", src, err)
		}
		again, err := ParseLock("f", once, lockSites())
		if err != nil {
			t.Fatalf("%q: own output refused: %v", src, err)
		}
		if twice, err := again.Encode(); err != nil || string(twice) != string(once) {
			t.Errorf("%q: not stable: %s then %s (%v)", src, once, twice, err)
		}
	})
}
