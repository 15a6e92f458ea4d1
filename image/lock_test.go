package image

import (
	"encoding/json"
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

func sampleLock() *Lock {
	return &Lock{
		Version: 1,
		Base:    LockedBase{Name: "python", Packages: map[string]string{"python3": "3.11.2-1+b1", "libc6": "2.36-9"}},
		Pip: &LockedPip{Request: []string{"zeta>=1", "Alpha_b"}, Packages: []LockedPackage{
			{Name: "zeta", Version: "1.2", Hashes: []string{hashB, hashA, hashB}},
			{Name: "alpha-b", Version: "3!1.0+local", Hashes: []string{hashA}, Source: "alpha_b-3!1.0+local.tar.gz", Requires: []LockedPackage{
				{Name: "wheel", Version: "0.45", Hashes: []string{hashB, hashA}}, {Name: "setuptools", Version: "75", Hashes: []string{hashA}},
			}},
		}},
		NPM: &LockedNPM{Request: []string{"x@>=1 <2"}, PackageLock: json.RawMessage(`{"lockfileVersion":3,"packages":{}}`)},
	}
}

const sampleLockText = `{
  "version": 1,
  "base": {
    "name": "python",
    "packages": {
      "libc6": "2.36-9",
      "python3": "3.11.2-1+b1"
    }
  },
  "pip": {
    "request": [
      "zeta>=1",
      "Alpha_b"
    ],
    "packages": [
      {
        "name": "alpha-b",
        "version": "3!1.0+local",
        "hashes": [
          "HASHA"
        ],
        "source": "alpha_b-3!1.0+local.tar.gz",
        "requires": [
          {
            "name": "setuptools",
            "version": "75",
            "hashes": [
              "HASHA"
            ]
          },
          {
            "name": "wheel",
            "version": "0.45",
            "hashes": [
              "HASHA",
              "HASHB"
            ]
          }
        ]
      },
      {
        "name": "zeta",
        "version": "1.2",
        "hashes": [
          "HASHA",
          "HASHB"
        ]
      }
    ]
  },
  "npm": {
    "request": [
      "x@>=1 <2"
    ],
    "package_lock": {
      "lockfileVersion": 3,
      "packages": {}
    }
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
	if got, err := ReadLock(dir); got != nil || err != nil {
		t.Fatalf("no file: got %v, %v", got, err)
	}
	if err := WriteLock(dir, sampleLock()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir.Name(), LockFile))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("HASHA", hashA, "HASHB", hashB).Replace(sampleLockText)
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	before, err := dir.Stat(LockFile)
	if err != nil {
		t.Fatal(err)
	}
	read, err := ReadLock(dir)
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
	l := sampleLock()
	tmpl := &template.Template{Packages: template.Packages{"pip": {List: []string{"zeta>=1", "Alpha_b"}}, "npm": {List: []string{"x@2"}}}}
	if l.PipFor(tmpl) != l.Pip {
		t.Error("the pip section answers the same request")
	}
	if l.NPMFor(tmpl) != nil {
		t.Error("the npm section answers another request")
	}
	tmpl.Packages.Of("pip").Index = map[string]string{"zeta": "team"}
	if l.PipFor(tmpl) != nil {
		t.Error("the pip section answers a request to another index")
	}
	if (*Lock)(nil).PipFor(tmpl) != nil {
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
		{"two values", `{"version":1} {}`, "several JSON values"},
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
			_, err := ParseLock(LockFile, []byte(c.src))
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
	f.Add([]byte(`{"version":1,"npm":{"request":null,"package_lock":{}}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		l, err := ParseLock("f", src)
		if err != nil {
			_ = err.Error()
			return
		}
		once, err := l.Encode()
		if err != nil {
			t.Fatalf("%q: %v", src, err)
		}
		again, err := ParseLock("f", once)
		if err != nil {
			t.Fatalf("%q: own output refused: %v", src, err)
		}
		if twice, err := again.Encode(); err != nil || string(twice) != string(once) {
			t.Errorf("%q: not stable: %s then %s (%v)", src, once, twice, err)
		}
	})
}
