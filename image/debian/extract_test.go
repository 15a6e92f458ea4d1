package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tarOf packs members without compression.
func tarOf(t *testing.T, members ...tar.Header) []byte {
	t.Helper()
	b := deb(t, "", members...)
	r, done, err := openMember(bytes.NewReader(b), "data.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// scripted is a package with a postinst script.
func scripted(t *testing.T, script string, members ...tar.Header) []byte {
	t.Helper()
	return arWith("", tarOf(t, members...), tarOf(t, file("./control", "Package: p\n", 0o644), file("./postinst", script, 0o755)))
}

// TestExtract: A Debian package is extracted with the links that its scripts would make.
func TestExtract(t *testing.T) {
	for name, tt := range map[string]struct {
		script  string
		members []tar.Header
		want    memory
		skipped []string
	}{
		"over another tree": {
			script:  "#!/bin/sh\nset -e\nldconfig\n",
			members: []tar.Header{file("./bin/bash", "x", 0o755), file("./lib/x/y.so", "y", 0o644)},
			want:    memory{"usr": "dir", "usr/bin": "dir", "usr/bin/bash": "755 x", "usr/lib": "dir", "usr/lib/x": "dir", "usr/lib/x/y.so": "644 y"},
		},
		"alternatives": {
			script: `update-alternatives \
        --install /bin/nc nc /bin/nc.openbsd 50 \
        --slave /bin/netcat netcat /bin/nc.openbsd \
        --slave /usr/share/man/man1/nc.1.gz nc.1.gz \
                /usr/share/man/man1/none.1.gz
update-alternatives --install /usr/bin/nc.openbsd nc /bin/nc.openbsd 1
update-alternatives --install /lib x /bin/nc.openbsd 1
update-alternatives --install ../../x x /bin/nc.openbsd 1
`,
			members: []tar.Header{file("./bin/nc.openbsd", "x", 0o755)},
			want: memory{
				"usr": "dir", "usr/bin": "dir", "usr/bin/nc.openbsd": "755 x",
				"usr/bin/nc": "→ /usr/bin/nc.openbsd", "usr/bin/netcat": "→ /usr/bin/nc.openbsd",
			},
		},
		"in a loop": {
			script: `if [ "$1" = configure ]; then
  suffix=im6
  for prog in identify   convert none; do
	update-alternatives --install /usr/bin/$prog \
	      $prog /usr/bin/${prog}-$suffix 10000
	update-alternatives --install /usr/bin/$other $prog /usr/bin/$prog-im6 1
	fc-cache -s -f
  done
fi
# fmtutil-sys is run by hand
fc-cache
`,
			members: []tar.Header{file("./usr/bin/convert-im6", "c", 0o755), file("./usr/bin/identify-im6", "i", 0o755)},
			want: memory{
				"usr": "dir", "usr/bin": "dir", "usr/bin/convert-im6": "755 c", "usr/bin/identify-im6": "755 i",
				"usr/bin/convert": "→ /usr/bin/convert-im6", "usr/bin/identify": "→ /usr/bin/identify-im6",
			},
			skipped: []string{"fc-cache"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newTestArchive(t)
			a.publish(t, stanza{name: "p", version: "1", deb: scripted(t, tt.script, tt.members...)})
			o := a.open(t, t.TempDir())
			p, err := o.Find(t.Context(), "p", "1")
			if err != nil {
				t.Fatal(err)
			}
			got := memory{}
			skipped, err := o.Extract(t.Context(), p, got, nil)
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if diff := cmp.Diff(tt.skipped, skipped); diff != "" {
				t.Errorf("skipped: -want +got:\n%s", diff)
			}
		})
	}
}

// TestResolveOver: Packages resolve on top of an installed base, without a change of the base.
func TestResolveOver(t *testing.T) {
	a := newTestArchive(t)
	a.publish(
		t,
		stanza{name: "app", version: "2", fields: "Depends: liba (>= 2), awk, extra"},
		stanza{name: "app", version: "1.5", fields: "Depends: extra"},
		stanza{name: "liba", version: "2"},
		stanza{name: "extra", version: "1", fields: "Depends: twin (= 1)"},
		stanza{name: "twin", version: "1"},
		stanza{name: "mawk", version: "1", fields: "Provides: awk"},
		stanza{name: "split", version: "1", fields: "Depends: app (>= 2)"},
	)
	o := a.open(t, t.TempDir())
	for name, tt := range map[string]struct {
		requests  string
		installed map[string]string
		want      string
		wantErr   error
		text      string
	}{
		"nothing installed":           {requests: "app", want: "app=2 extra=1 liba=2 mawk=1 twin=1"},
		"installed, also as provider": {requests: "app", installed: map[string]string{"liba": "3", "mawk": "1", "twin": "1"}, want: "app=2 extra=1"},
		"installed already":           {requests: "app", installed: map[string]string{"app": "1"}, want: ""},
		"an older version":            {requests: "app=1.*", want: "app=1.5 extra=1 twin=1"},
		"older, installed as such":    {requests: "app=1.*", installed: map[string]string{"app": "1.7-3"}, want: ""},
		"older than installed":        {requests: "app=1.*", installed: map[string]string{"app": "2"}, wantErr: ErrInstalled, text: "the base environment has 2"},
		"needs a newer one":           {requests: "app", installed: map[string]string{"liba": "1"}, wantErr: ErrInstalled, text: "app needs liba (>= 2), but the base environment has 1"},
		"needs the archive's":         {requests: "extra", installed: map[string]string{"twin": "0.9"}, wantErr: ErrInstalled, text: "extra needs twin (= 1)"},
		"no such version":             {requests: "app=7*", wantErr: ErrUnresolved, text: "app=7*: the archive has 2, 1.5"},
		"two that exclude each other": {requests: "app=1.5 split", wantErr: ErrUnresolved, text: "split → app (>= 2)"},
		"no version":                  {requests: "app=", text: "bad version"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := o.ResolveOver(t.Context(), strings.Fields(tt.requests), tt.installed, nil)
			if tt.text != "" {
				if err == nil || tt.wantErr != nil && !errors.Is(err, tt.wantErr) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want %v with %q", err, tt.wantErr, tt.text)
				}
				return
			}
			if err != nil || names(got) != tt.want {
				t.Errorf("got %s, %v, want %s", names(got), err, tt.want)
			}
		})
	}
}

// sharedObject compiles an empty library that needs the given libraries.
func sharedObject(t *testing.T, name string, needs ...string) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"-shared", "-nostdlib", "-x", "c", "-Wl,--no-as-needed", "-Wl,-soname," + name, "-o", filepath.Join(dir, name), os.DevNull, "-x", "none"}
	for _, n := range needs {
		other := filepath.Join(dir, n)
		if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-nostdlib", "-x", "c", "-Wl,-soname,"+n, "-o", other, os.DevNull).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		args = append(args, other)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestResolveLibraries: A library's name resolves to the Debian package that contains the library;
// an unknown library gives similar names.
func TestResolveLibraries(t *testing.T) {
	lib := "./" + LibraryDirs()[0] + "/"
	a := newTestArchive(t)
	one := func(name, p string, needs ...string) []byte {
		return scripted(t, "", file(lib+p, sharedObject(t, path.Base(p), needs...), 0o644), symlink(lib+"lib"+name+"-link.so.9", path.Base(p)))
	}
	a.contents = "bin/x  utils/x\n" + lib[2:] + "libodd.so.4\t\tlibs/strange-name,libs/libgone\n" + lib[2:] + "libodder.so.4 libs/x\n" + lib[2:] + "sub/libaside.so.1 libs/aside\n"
	a.publish(
		t,
		stanza{name: "libone2", version: "1", deb: one("one", "libone.so.2", "libtwo-1.so.0", "libbase.so.1"), fields: "Depends: libtwo-1-0, libunused"},
		stanza{name: "libtwo-1-0", version: "1", deb: one("two", "libtwo-1.so.0")},
		stanza{name: "libunused", version: "1", deb: one("unused", "libunused.so.1")},
		stanza{name: "strange-name", version: "1", deb: one("odd", "libodd.so.4")},
		stanza{name: "aside", version: "1", deb: scripted(t, "update-alternatives --install /"+lib[2:]+"libaside.so.1 l /"+lib[2:]+"sub/libaside.so.1 1\n",
			file(lib+"sub/libaside.so.1", sharedObject(t, "libaside.so.1"), 0o644))},
		stanza{name: "libbroken1", version: "1", deb: one("broken", "libbroken.so.1", "libnone.so.1")},
	)
	o := a.open(t, t.TempDir())
	has := func(name string) bool { return name == "libbase.so.1" }
	for name, tt := range map[string]struct{ ask, want, text string }{
		"by its name, with what it needs": {ask: "libone.so.2", want: "libone2=1 libtwo-1-0=1"},
		"by the list of files":            {ask: "libodd.so.4", want: "strange-name=1"},
		"an alternative":                  {ask: "libaside.so.1", want: "aside=1"},
		"both":                            {ask: "libone.so.2 libtwo-1.so.0", want: "libone2=1 libtwo-1-0=1"},
		"there already":                   {ask: "libbase.so.1", want: ""},
		"none":                            {ask: "libodde.so.4", text: "no package of test has the library libodde.so.4; near: libodder.so.4"},
		"not a library":                   {ask: "libone2", text: "for example libxml2.so.2"},
		"needs what is nowhere":           {ask: "libbroken.so.1", text: "libbroken1 needs libnone.so.1"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := o.ResolveLibraries(t.Context(), strings.Fields(tt.ask), nil, nil, has)
			if tt.text != "" {
				if !errors.Is(err, ErrUnresolved) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want %q", err, tt.text)
				}
				return
			}
			if err != nil || names(got) != tt.want {
				t.Errorf("got %s, %v, want %s", names(got), err, tt.want)
			}
		})
	}
	if a.hits["/pool/libunused_1.deb"] > 0 {
		t.Error("a package was fetched that no library is named after")
	}
}

func TestParseStatus(t *testing.T) {
	got, err := ParseStatus([]byte("Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1:2-3\nDescription: x\n y\n\n" +
		"Package: b\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n\n" +
		"Package: c\nStatus: install ok installed\nArchitecture: " + arch() + "\nVersion: 3\n\nPackage: d\nStatus: install ok installed\nArchitecture: z80\nVersion: 3\n"))
	if diff := cmp.Diff(map[string]string{"a": "1:2-3", "c": "3"}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte("Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1:2-3\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		installed, err := ParseStatus(b)
		if err != nil {
			return
		}
		for name, v := range installed {
			if _, err := parseVersion(v); err != nil || !validName(name) {
				t.Errorf("%q %q: %v", name, v, err)
			}
		}
	})
}

// FuzzPostinst: Any postinst script gives absolute links without variables, within limits.
func FuzzPostinst(f *testing.F) {
	f.Add([]byte("p=/usr\nfor x in a b; do update-alternatives --install $p/bin/$x x ${p}/bin/$x-y 1 --slave /m m $x/$p; done\nfc-cache\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		links, _ := readPostinst(b)
		if len(links) > maxAlternatives {
			t.Errorf("%d links", len(links))
		}
		for _, l := range links {
			if !path.IsAbs(l.link) || !path.IsAbs(l.target) || strings.ContainsAny(l.link+l.target, "$\x00") {
				t.Errorf("link %+v", l)
			}
		}
	})
}

// FuzzContents: Any list of contents gives valid package names, within limits.
func FuzzContents(f *testing.F) {
	f.Add([]byte("usr/lib/"+triplet()+"/libx.so.1 libs/libx1,libs/y\nlib/libx.so.2\tz\n"), "libx.so.1")
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		if !soname.MatchString(name) {
			return
		}
		c := &contentsSearch{name: name}
		if err := c.read(context.Background(), bytes.NewReader(b)); err != nil {
			return
		}
		packages, near := c.result()
		for _, p := range packages {
			if !validName(p) {
				t.Errorf("package %q", p)
			}
		}
		if len(packages) > 16 || len(near) > 5 {
			t.Errorf("%d packages, %d near", len(packages), len(near))
		}
		if len(candidates(name)) == 0 {
			t.Errorf("no package would be named after %q", name)
		}
	})
}
