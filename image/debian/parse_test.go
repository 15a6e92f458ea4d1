package debian

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pault.ag/go/debian/version"
)

// Versions sort as in Debian policy 5.6.12 and deb-version(7), with dpkg's own corner cases.
func TestVersionOrder(t *testing.T) {
	tests := []struct{ a, op, b string }{
		{"1.0", "=", "1.0"},
		{"1.0", "<", "1.1"},
		{"1.2", "<", "1.10"},
		{"1.0~rc1", "<", "1.0"},
		{"1.0~~", "<", "1.0~~a"},
		{"1.0~~a", "<", "1.0~"},
		{"1.0~", "<", "1.0"},
		{"1.0", "<", "1.0a"},
		{"1.0a", "<", "1.0+"}, // letters before other characters
		{"9", "<", "1:0"},
		{"0:1", "=", "1"},
		{"1.0", "=", "1.0-0"},
		{"1.0-1", "<", "1.0-1.1"},
		{"1.0-1", "<", "1.0-1+b1"},
		{"1.0-1~deb12u2", "<", "1.0-1"},
		{"1.0-9", "<", "1.0-10"},
		{"1-2-1", ">", "1-1-9"}, // the last hyphen starts the revision
		{"1.01", "=", "1.1"},
		{"2.36-9+deb12u9", "<", "2.36-9+deb12u10"},
		{"1:1.2.13.dfsg-1", ">", "1.3"},
	}
	for _, tt := range tests {
		a, err := version.Parse(tt.a)
		if err != nil {
			t.Fatal(err)
		}
		b, err := version.Parse(tt.b)
		if err != nil {
			t.Fatal(err)
		}
		sign := func(n int) string {
			return map[bool]string{n < 0: "<", n > 0: ">", n == 0: "="}[true]
		}
		opposite := map[string]string{"<": ">", ">": "<", "=": "="}[tt.op]
		if got, back := sign(version.Compare(a, b)), sign(version.Compare(b, a)); got != tt.op || back != opposite {
			t.Errorf("%s ? %s = %s, and back %s, want %s", tt.a, tt.b, got, back, tt.op)
		}
	}
}

const listFile = `# comment
deb http://deb.example.org/debian/ bookworm main contrib # trailing
deb-src http://deb.example.org/debian bookworm main
deb [ arch=amd64,arm64 signed-by=/usr/share/keyrings/a.gpg ] http://deb.example.org/security bookworm-security main
deb [trusted=yes] file:/srv/mirror bookworm main
deb cdrom:[Debian GNU/Linux 12 _Bookworm_]/ bookworm main
deb http://deb.example.org/debian bookworm-backports main
deb http://third.example.org/ stable main
`

const sourcesFile = `# comment
Types: deb deb-src
URIs: http://deb.example.org/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main
Check-Valid-Until: no
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://off.example.org/debian
Suites: bookworm
Components: main

Types: deb
URIs: mirror+file:/etc/apt/mirrors/m.list
Suites: bookworm-security
Components: main
Signed-By: 0123456789abcdef0123456789abcdef01234567
`

// TestHostSources: The sources come from the host's sources.list, its .sources files and its mirror
// lists.
func TestHostSources(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hostSources(root, "bookworm", "amd64", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "none usable for bookworm") {
		t.Errorf("without sources: %v", err)
	}
	write("etc/apt/sources.list", listFile)
	write("etc/apt/sources.list.d/x.sources", sourcesFile)
	write("etc/apt/mirrors/m.list", "# mirrors\nhttp://near.example.org/security priority:1\nhttp://far.example.org/security\n")
	write("etc/apt/trusted.gpg.d/d.asc", "")
	own := []string{filepath.Join(root, "etc/apt/trusted.gpg.d/d.asc")}
	inline := []byte("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nabc\n-----END PGP PUBLIC KEY BLOCK-----\n")
	want := []Source{
		{URI: "http://deb.example.org/debian", Suite: "bookworm", Components: []string{"main", "contrib"}, Keyrings: own},
		{URI: "http://deb.example.org/security", Suite: "bookworm-security", Components: []string{"main"}, Keyrings: []string{filepath.Join(root, "usr/share/keyrings/a.gpg")}},
		{URI: "http://deb.example.org/debian", Suite: "bookworm", Components: []string{"main"}, Keys: inline, AllowExpired: true},
		{URI: "http://deb.example.org/debian", Suite: "bookworm-updates", Components: []string{"main"}, Keys: inline, AllowExpired: true},
		{URI: "http://near.example.org/security", Suite: "bookworm-security", Components: []string{"main"}, Keyrings: own, Fingerprints: []string{"0123456789ABCDEF0123456789ABCDEF01234567"}},
	}
	got, err := hostSources(root, "bookworm", "amd64", slog.New(slog.DiscardHandler))
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("hostSources: %v (-want +got):\n%s", err, diff)
	}

	only := t.TempDir()
	root = only
	write("etc/apt/sources.list", "deb [trusted=yes] http://x.example.org/ bookworm main\ndeb tor+http://x.example.org/ bookworm main\n")
	_, err = hostSources(root, "bookworm", "amd64", slog.New(slog.DiscardHandler))
	for _, part := range []string{"trusted", `scheme "tor+http"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("with unusable sources: %v, want %q in it", err, part)
		}
	}
	for name, content := range map[string]string{
		"no suite": "deb http://x.example.org/\n", "open bracket": "deb [arch=amd64 http://x.example.org bookworm main\n", "type": "debb http://x bookworm main\n",
	} {
		write("etc/apt/sources.list", content)
		if _, err := hostSources(root, "bookworm", "amd64", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "sources.list: line 1") {
			t.Errorf("%s: %v, want an error with file and line", name, err)
		}
	}
}

func TestParseAptConfig(t *testing.T) {
	got := parseAptConfig("Acquire::http::Proxy \"http://proxy.example.org:3142\";\nAcquire::HTTPS::Proxy \"DIRECT\";\nAcquire::Check-Valid-Until \"false\";\n")
	want := aptConfig{proxy: map[string]string{"http": "http://proxy.example.org:3142", "https": "DIRECT"}, allowExpired: true}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(aptConfig{})); diff != "" {
		t.Errorf("parseAptConfig (-want +got):\n%s", diff)
	}
	if parseAptConfig("").allowExpired {
		t.Error("expired release files are allowed without a configuration")
	}
}

// TestKeep: A pattern drops the matching files and all files below a matching directory.
func TestKeep(t *testing.T) {
	keep, err := Keep([]string{"usr/share/doc", "**/*.a", "usr/lib/python3*/**/test", "**/__pycache__"})
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{
		"usr/share/doc": false, "usr/share/doc/x/y": false, "usr/share/documents": true, "usr/share": true,
		"usr/lib/x.a": false, "x.a": false, "usr/lib/x.a.so": true,
		"usr/lib/python3.11/test/x.py": false, "usr/lib/python3.11/a/b/test": false, "usr/lib/python3.11/tests": true,
		"a/__pycache__/b": false,
	} {
		if got := keep(p); got != want {
			t.Errorf("keep(%q) = %v, want %v", p, got, want)
		}
	}
	for _, bad := range []string{"a/[", "", "/a", "a//b"} {
		if _, err := Keep([]string{bad}); err == nil {
			t.Errorf("Keep(%q): no error", bad)
		}
	}
}

func TestParsePackagesRefuses(t *testing.T) {
	good := "Package: p\nVersion: 1\nArchitecture: all\nFilename: pool/p.deb\nSize: 1\nInstalled-Size: 3\nSHA256: " + strings.Repeat("a", 64) + "\n"
	if l, err := parsePackages(strings.NewReader(good), "", "amd64"); err != nil || len(l) != 1 || l[0].InstalledSize != 3072 {
		t.Fatalf("good paragraph: %v, %v", l, err)
	}
	for name, r := range map[string][2]string{
		"name with a slash": {"Package: p", "Package: ../p"},
		"version":           {"Version: 1", "Version: one two"},
		"file name climbs":  {"pool/p.deb", "../../etc/passwd"},
		"negative size":     {"Size: 1", "Size: -1"},
		"huge size":         {"Size: 1", "Size: 99999999999999999999"},
		"installed size":    {"Installed-Size: 3", "Installed-Size: -3"},
		"hash as a path":    {"SHA256: aaaa", "SHA256: ../a"},
		"field twice":       {"Size: 1", "Size: 1\nSize: 2"},
		"no field":          {"Size: 1", "Size 1"},
	} {
		if l, err := parsePackages(strings.NewReader(strings.Replace(good, r[0], r[1], 1)), "", "amd64"); err == nil {
			t.Errorf("%s: no error, got %v", name, l)
		}
	}
	if l, err := parsePackages(strings.NewReader(strings.Replace(good, "all", "s390x", 1)), "", "amd64"); err != nil || len(l) != 0 {
		t.Errorf("other architecture: %v, %v, want it left out", l, err)
	}
}

func FuzzSources(f *testing.F) {
	f.Add([]byte(listFile))
	f.Add([]byte(sourcesFile))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range []func([]byte) ([]entry, error){parseList, parseSources} {
			l, err := parse(b)
			if err != nil {
				continue
			}
			for _, e := range l {
				if e.URI == "" || e.Suite == "" {
					t.Errorf("entry without address or suite: %+v", e)
				}
			}
		}
	})
}

func FuzzPackages(f *testing.F) {
	f.Add([]byte("Package: p\nVersion: 1:2-3\nArchitecture: all\nFilename: pool/p.deb\nSize: 1\nSHA256: " + strings.Repeat("a", 64) + "\nDepends: a (>= 1) | b,\n c\n\n# x\nPackage: q\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parsePackages(bytes.NewReader(b), "", "amd64")
		if err != nil {
			return
		}
		for _, p := range l {
			if len(p.SHA256) != 64 || strings.ContainsAny(p.SHA256, "/.") || !filepath.IsLocal(p.Filename) || p.Size < 0 {
				t.Errorf("unsafe package %+v", p)
			}
		}
	})
}

func FuzzRelease(f *testing.F) {
	f.Add([]byte("Origin: x\nSuite: s\nCodename: c\nValid-Until: Sat, 11 Jul 2026 10:16:37 UTC\nSHA256:\n " + strings.Repeat("a", 64) + " 12 main/binary-amd64/Packages.gz\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRelease(b)
		if err == nil && len(r.files) == 0 {
			t.Error("a release without files")
		}
	})
}

func FuzzDepends(f *testing.F) {
	f.Add("a (>= 1:2~x-3) | b:any, c (<< 2)")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := parseDepends(s)
		if err != nil {
			return
		}
		var groups []string
		for _, g := range l {
			var or []string
			for _, d := range g {
				or = append(or, d.String())
			}
			groups = append(groups, strings.Join(or, " | "))
		}
		again, err := parseDepends(strings.Join(groups, ", "))
		if diff := cmp.Diff(l, again, cmp.AllowUnexported(dependency{})); err != nil || diff != "" {
			t.Errorf("%q does not survive printing: %v\n%s", s, err, diff)
		}
	})
}

func FuzzAr(f *testing.F) {
	f.Add([]byte("!<arch>\ndebian-binary   0           0     0     100644  4         `\n2.0\ndata.tar        0           0     0     100644  4         `\nabcd"))
	for name := range xzFiles {
		f.Add(debOf(xzFile(f, name)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, done, err := openMember(bytes.NewReader(b), "data.tar")
		if err != nil {
			return
		}
		defer done()
		_, _ = io.Copy(io.Discard, io.LimitReader(r, 1<<20)) // an error is fine, a panic is not
	})
}

func FuzzVersion(f *testing.F) {
	f.Add("1:2.3-4~x", "1.0", "2")
	f.Fuzz(func(t *testing.T, x, y, z string) {
		a, err1 := version.Parse(x)
		b, err2 := version.Parse(y)
		c, err3 := version.Parse(z)
		if errors.Join(err1, err2, err3) != nil {
			return
		}
		if version.Compare(a, a) != 0 {
			t.Errorf("%q differs from itself", x)
		}
		if p, q := version.Compare(a, b), version.Compare(b, a); (p < 0) != (q > 0) || (p == 0) != (q == 0) {
			t.Errorf("%q, %q: %d one way, %d the other", x, y, p, q)
		}
		if version.Compare(a, b) < 0 && version.Compare(b, c) < 0 && version.Compare(a, c) >= 0 {
			t.Errorf("%q < %q < %q, but not the first and last", x, y, z)
		}
	})
}
