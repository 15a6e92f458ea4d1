package python

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

var _ image.ForkServer = Runtime{}

func TestCommand(t *testing.T) {
	for handler, ok := range map[string]bool{
		"main.handle": true, "pkg.mod.handle": true, "größe.f": true, "_m._f": true,
		"": false, "main": false, "main.": false, ".handle": false, "main.py:handle": false, "a-b.c": false, "../m.f": false, "1a.b": false,
	} {
		_, _, err := Runtime{}.Command(&template.Template{Handler: handler})
		var f *template.FieldError
		if ok != (err == nil) || !ok && !errors.As(err, &f) {
			t.Errorf("%q: %v", handler, err)
		}
	}
}

// TestParsePinned: The resolver's pinned packages are read with their hashes.
func TestParsePinned(t *testing.T) {
	const sum = "sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"
	got, err := parsePinned([]byte("a==1.0 \\\n    --hash=" + sum + " \\\n    --hash=" + sum + "\nb-c==2.0+x ; python_version > '3' \\\n    --hash=" + sum + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []image.LockedPackage{
		{Name: "a", Version: "1.0", Hashes: []string{sum, sum}},
		{Name: "b-c", Version: "2.0+x", Hashes: []string{sum}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"a==1\n", "--hash=" + sum + "\n", "a @ https://h/a.whl\n", "--index-url https://h\n", "a>=1 --hash=" + sum, "-r x"} {
		if got, err := parsePinned([]byte(bad)); err == nil {
			t.Errorf("%q: got %v", bad, got)
		}
	}
}

// TestRequestOf: A requirements file with its included files gives the list of requirements; URLs,
// outside paths and variables are refused.
func TestRequestOf(t *testing.T) {
	const sum = "sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"
	files := map[string]string{
		"requirements.txt": "# what the function needs\n\nlxml[html] >= 5, \\\n  < 6 # comment\r\nsix==1.16.0 --hash=" + sum + "\n-r more/web.txt\n-c=limits.txt\n--require-hashes\n",
		"more/web.txt":     "flask (>=2) ; python_version > '3.8'\n-r ../requirements.txt\n--requirement third.txt",
		"more/third.txt":   "x",
		"limits.txt":       "idna<3.5\n-r more/third.txt",
		"last":             "a\\",
	}
	read := func(name string) ([]byte, error) {
		text, ok := files[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return []byte(text), nil
	}
	got, err := requestOf("requirements.txt", []byte(files["requirements.txt"]), read)
	if err != nil {
		t.Fatal(err)
	}
	want := &request{
		list: []requirement{
			{text: "lxml[html] >= 5,   < 6"}, {text: "six==1.16.0", hashes: []string{sum}}, {text: "flask (>=2) ; python_version > '3.8'"}, {text: "x"},
		},
		constraints: []requirement{{text: "idna<3.5"}, {text: "x"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(request{}, requirement{}, formats{})); diff != "" {
		t.Error(diff)
	}
	if got, err := requestOf("last", []byte(files["last"]), read); err != nil || len(got.list) != 1 || got.list[0].text != "a" {
		t.Errorf("a last line that goes on: %+v, %v", got, err)
	}

	for bad, want := range map[string]string{
		"a\n-i https://user:secret@host/simple": "requirements.txt:2: -i: packages come from the indexes in the engine's configuration",
		"--extra-index-url=https://h":           "--extra-index-url: packages come from the indexes in the engine's configuration",
		"--find-links x":                        "--find-links: packages come from the indexes in the engine's configuration",
		"-e .":                                  "-e is not supported",
		"--no-binary":                           "--no-binary names no package",
		"--only-binary a/b":                     "write names of packages",
		"--config-settings x=y":                 "--config-settings is not supported",
		"a @ https://h/a.whl":                   "bad requirement",
		"https://h/a.whl":                       "bad requirement",
		"./a":                                   "bad requirement",
		"git+https://h/a":                       "bad requirement",
		"a==${TOKEN}":                           "variables are not supported",
		"a==1 --hash=md5:00":                    "only sha256",
		"a --hash=" + sum:                       "has a hash but no version",
		"a==1 --config-settings x=y":            "only the option --hash",
		"-r ../x":                               "only files below the template's directory",
		"-r /etc/passwd":                        "only files below the template's directory",
		"-r https://h/r.txt":                    "only files below the template's directory",
		"-r missing.txt":                        "the missing file missing.txt",
		"-r":                                    "-r names no file",
		"--":                                    "bad option",
	} {
		_, err := requestOf("requirements.txt", []byte(bad), read)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", bad, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error repeats a password: %v", bad, err)
		}
	}
}

// TestRequestOfOptions: Options in a requirements file of pip are understood.
func TestRequestOfOptions(t *testing.T) {
	files := map[string]string{
		"requirements.txt": "--pre\n--prefer-binary\n--only-binary=:all:\n--no-binary\tNumpy,lxml\n-r more.txt\nsix\t==1.16.0\rlxml \t; python_version\t> '3.8'\f",
		"more.txt":         "--no-binary scipy_x\n--only-binary lxml\n",
	}
	q, err := requestOf("requirements.txt", []byte(files["requirements.txt"]), func(name string) ([]byte, error) { return []byte(files[name]), nil })
	if err != nil {
		t.Fatal(err)
	}
	if want := "six ==1.16.0\nlxml  ; python_version > '3.8'\n"; string(text(q.list)) != want || !q.pre {
		t.Errorf("list %q, want %q; pre %v", text(q.list), want, q.pre)
	}
	for name, want := range map[string][2]bool{"numpy": {false, true}, "Scipy.X": {false, true}, "other": {true, false}} {
		if got := [2]bool{q.binary.onlyBinary(name), q.binary.noBinary(name)}; got != want {
			t.Errorf("%s: only binary, no binary %v, want %v", name, got, want)
		}
	}
}

// TestHonourHashes: The hashes of a requirements file restrict the locked hashes.
func TestHonourHashes(t *testing.T) {
	sum := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	q, err := requestOf("r.txt", []byte("A_b==1 --hash="+sum("1")+" --hash="+sum("2")+"\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	packages := []image.LockedPackage{{Name: "a-b", Version: "1", Hashes: []string{sum("2"), sum("3")}}}
	if err := q.honour(packages, "r.txt"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{sum("2")}, packages[0].Hashes); diff != "" {
		t.Error(diff)
	}
	for _, p := range []image.LockedPackage{
		{Name: "a-b", Version: "1", Hashes: []string{sum("4")}},
		{Name: "c", Version: "1", Hashes: []string{sum("1")}},
	} {
		var field *template.FieldError
		if err := q.honour([]image.LockedPackage{p}, "r.txt"); !errors.As(err, &field) {
			t.Errorf("%+v: got %v", p, err)
		}
	}
}

// FuzzParseRequirements: An accepted requirement holds no option, no variable and no line break.
func FuzzParseRequirements(f *testing.F) {
	f.Add("a==1.0 \\\n    --hash=sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254\n")
	f.Add("-r more.txt\n-c limits.txt # x\nb[c] >= 1; python_version > '3'")
	f.Fuzz(func(t *testing.T, src string) {
		q, err := requestOf("r.txt", []byte(src), func(string) ([]byte, error) { return []byte("x\n-r r.txt"), nil })
		if err != nil {
			return
		}
		again, err := requestOf("r.txt", text(q.list), nil)
		if err != nil {
			t.Fatalf("%q gives a text that is refused: %v", src, err)
		}
		for i, r := range q.list {
			if strings.ContainsAny(r.text, "\n\r\x00") || strings.Contains(r.text, "${") || strings.HasPrefix(r.text, "-") || again.list[i].text != r.text {
				t.Errorf("%q: hands on %q", src, r.text)
			}
		}
	})
}

// FuzzNote: The headers in uv's cache entry are cut at the stated length, or not at all.
func FuzzNote(f *testing.F) {
	f.Add([]byte("note and headers\x07\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		note, ok := withoutHeaders(b)
		if ok && (len(note) > len(b)-8 || !bytes.HasPrefix(b, note)) {
			t.Errorf("%q of %q", note, b)
		}
		if !ok && note != nil {
			t.Errorf("%q and false", note)
		}
	})
}
