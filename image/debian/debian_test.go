package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/google/go-cmp/cmp"
)

func names(pkgs []Package) string {
	var out []string
	for _, p := range pkgs {
		out = append(out, p.Name+"="+p.Version)
	}
	return strings.Join(out, " ")
}

// TestResolve: Resolve finds the dependencies of a package, with versions, alternatives and virtual
// packages.
func TestResolve(t *testing.T) {
	a := newTestArchive(t)
	a.publish(
		t,
		stanza{name: "app", version: "1", fields: "Depends: liba (>= 2), awk, sh | dash\nPre-Depends: pre"},
		stanza{name: "liba", version: "1"},
		stanza{name: "liba", version: "2~rc1"},
		stanza{name: "liba", version: "2"},
		stanza{name: "pre", version: "1"},
		stanza{name: "gawk", version: "1", fields: "Provides: awk"},
		stanza{name: "mawk", version: "1", fields: "Provides: awk\nPriority: required"},
		stanza{name: "dash", version: "1"},
		stanza{name: "cycle-a", version: "1", fields: "Depends: cycle-b"},
		stanza{name: "cycle-b", version: "1", fields: "Depends: cycle-a:any"},
		stanza{name: "api3", version: "9", fields: "Provides: api (= 3), other"},
		stanza{name: "wants-api", version: "1", fields: "Depends: api (>= 3), api (<< 4)"},
		stanza{name: "wants-new-api", version: "1", fields: "Depends: api (>> 3)"},
		stanza{name: "wants-versioned-other", version: "1", fields: "Depends: other (>= 1)"},
		stanza{name: "broken", version: "1", fields: "Depends: middle"},
		stanza{name: "middle", version: "1", fields: "Depends: none (= 1) | liba (>= 3)"},
	)
	o := a.open(t, t.TempDir())
	tests := map[string]struct {
		roots, exclude string
		want, wantErr  string
	}{
		"closure":                          {roots: "app", want: "app=1 dash=1 liba=2 mawk=1 pre=1"},
		"alternative already taken":        {roots: "gawk app", want: "app=1 dash=1 gawk=1 liba=2 pre=1"},
		"excluded, not followed":           {roots: "app", exclude: "awk liba", want: "app=1 dash=1 pre=1"},
		"cycle":                            {roots: "cycle-a", want: "cycle-a=1 cycle-b=1"},
		"versioned provides":               {roots: "wants-api", want: "api3=9 wants-api=1"},
		"virtual root":                     {roots: "api", want: "api3=9"},
		"provided version too low":         {roots: "wants-new-api", wantErr: "wants-new-api → api (>> 3)"},
		"unversioned provides do not do":   {roots: "wants-versioned-other", wantErr: "wants-versioned-other → other (>= 1)"},
		"missing dependency, with a chain": {roots: "broken", wantErr: "broken → middle → none (= 1) | liba (>= 3)"},
		"unknown root, with near names":    {roots: "dasch", wantErr: `"dasch"; near: dash`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := o.Resolve(t.Context(), strings.Fields(tt.roots), strings.Fields(tt.exclude))
			if tt.wantErr != "" {
				if !errors.Is(err, ErrUnresolved) || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("Resolve(%s) = %v, want ErrUnresolved with %q", tt.roots, err, tt.wantErr)
				}
				return
			}
			if err != nil || names(got) != tt.want {
				t.Errorf("Resolve(%s) = %s, %v, want %s", tt.roots, names(got), err, tt.want)
			}
		})
	}
}

// TestTrust: Only an archive with a valid signature, an unexpired release and matching hashes is
// used.
func TestTrust(t *testing.T) {
	inRelease := "/dists/test/InRelease"
	index := "/dists/test/main/binary-" + arch() + "/Packages.gz"
	tests := map[string]struct {
		headers string
		spoil   func(t *testing.T, a *testArchive)
		want    error
		text    string
	}{
		"good":         {},
		"still valid":  {headers: "Valid-Until: " + time.Now().UTC().Add(time.Hour).Format("Mon, _2 Jan 2006 15:04:05 MST") + "\n"},
		"expired":      {headers: "Valid-Until: " + time.Now().UTC().Add(-time.Hour).Format("Mon, _2 Jan 2006 15:04:05 MST") + "\n", want: ErrExpired},
		"by hash only": {headers: "Acquire-By-Hash: yes\n", spoil: func(_ *testing.T, a *testArchive) { delete(a.files, index) }},
		"other key": {spoil: func(t *testing.T, a *testArchive) {
			t.Helper()
			block, _ := clearsign.Decode(a.files[inRelease])
			a.files[inRelease] = sign(t, newKey(t), string(block.Plaintext))
		}, want: ErrSignature},
		"text changed": {spoil: func(_ *testing.T, a *testArchive) {
			a.files[inRelease] = bytes.Replace(a.files[inRelease], []byte("Origin: Test"), []byte("Origin: Tesx"), 1)
		}, want: ErrSignature},
		"unsigned": {spoil: func(_ *testing.T, a *testArchive) {
			block, _ := clearsign.Decode(a.files[inRelease])
			a.files[inRelease] = block.Plaintext
		}, want: ErrSignature},
		"data after the signature": {spoil: func(_ *testing.T, a *testArchive) {
			a.files[inRelease] = append(a.files[inRelease], "SHA256:\n"...)
		}, want: ErrSignature},
		"cut off": {spoil: func(_ *testing.T, a *testArchive) {
			a.files[inRelease] = a.files[inRelease][:200]
		}, want: ErrSignature},
		"other suite": {spoil: func(t *testing.T, a *testArchive) {
			t.Helper()
			block, _ := clearsign.Decode(a.files[inRelease])
			s := strings.NewReplacer("Suite: test", "Suite: old", "Codename: test", "Codename: old").Replace(string(block.Plaintext))
			a.files[inRelease] = sign(t, a.key, s)
		}, text: "not of test"},
		"index changed": {spoil: func(_ *testing.T, a *testArchive) {
			b := bytes.Clone(a.files[index])
			b[len(b)-1] ^= 1
			a.files[index] = b
		}, want: ErrHash},
		"index truncated": {spoil: func(_ *testing.T, a *testArchive) {
			a.files[index] = a.files[index][:20]
		}, want: ErrHash},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := newTestArchive(t)
			a.headers = tt.headers
			a.publish(t, stanza{name: "p", version: "1"})
			if tt.spoil != nil {
				tt.spoil(t, a)
			}
			_, err := a.open(t, t.TempDir()).Resolve(t.Context(), []string{"p"}, nil)
			switch {
			case tt.want == nil && tt.text == "" && err != nil:
				t.Errorf("Resolve: %v", err)
			case tt.want != nil && !errors.Is(err, tt.want):
				t.Errorf("Resolve: %v, want %v", err, tt.want)
			case tt.text != "" && (err == nil || !strings.Contains(err.Error(), tt.text)):
				t.Errorf("Resolve: %v, want %q in it", err, tt.text)
			}
		})
	}
}

// TestIndexLargerThanSigned: An index larger than the limit is refused.
func TestIndexLargerThanSigned(t *testing.T) {
	a := newTestArchive(t)
	a.publish(t, stanza{name: "p", version: "1"})
	o := a.open(t, t.TempDir())
	o.limits.index = 10
	if _, err := o.Resolve(t.Context(), []string{"p"}, nil); err == nil || !strings.Contains(err.Error(), "more than 10") {
		t.Errorf("Resolve: %v, want the index refused", err)
	}
}

// A second archive on the same cache fetches nothing. Without the server it still works until the
// release file expires.
func TestCache(t *testing.T) {
	a := newTestArchive(t)
	until := time.Now().Add(time.Hour)
	a.headers = "Valid-Until: " + until.UTC().Format(time.RFC1123) + "\n"
	a.publish(t, stanza{name: "p", version: "1", deb: deb(t, ".gz", file("./usr/x", "x", 0o644))})
	cache := t.TempDir()
	unpack := func(o *Archive) error {
		pkgs, err := o.Resolve(t.Context(), []string{"p"}, nil)
		if err != nil {
			return err
		}
		return o.Unpack(t.Context(), pkgs, memory{}, nil, nil)
	}
	for range 2 {
		if err := unpack(a.open(t, cache)); err != nil {
			t.Fatal(err)
		}
	}
	for p, n := range a.hits {
		if n != 1 {
			t.Errorf("%s fetched %d times, want 1", p, n)
		}
	}
	debs, _ := filepath.Glob(filepath.Join(cache, "deb", "*"))
	if len(debs) != 1 {
		t.Fatalf("cache holds %q, want one .deb", debs)
	}
	if err := os.WriteFile(debs[0], []byte("spoiled"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unpack(a.open(t, cache)); err != nil {
		t.Errorf("with a spoiled cache: %v", err)
	}
	a.Close()
	if err := unpack(a.open(t, cache)); err != nil {
		t.Errorf("offline: %v", err)
	}
	o := a.open(t, cache)
	o.now = func() time.Time { return until.Add(time.Minute) }
	if err := unpack(o); err == nil {
		t.Error("offline with an expired release file: no error")
	}
	o.sources[0].AllowExpired = true
	if err := unpack(o); err != nil {
		t.Errorf("offline, expired, allowed: %v", err)
	}
}

// TestRetry: A busy server is asked again.
func TestRetry(t *testing.T) {
	a := newTestArchive(t)
	a.publish(t, stanza{name: "p", version: "1"})
	inner, fails := a.Config.Handler, 2
	a.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fails > 0 {
			fails--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(w, r)
	})
	if _, err := a.open(t, t.TempDir()).Resolve(t.Context(), []string{"p"}, nil); err != nil {
		t.Errorf("Resolve after two 503: %v", err)
	}
}

// A download fails, and does not hang, if the server stops sending.
func TestStall(t *testing.T) {
	a := newTestArchive(t)
	a.publish(t, stanza{name: "p", version: "1"})
	a.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("-----BEGIN"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	o := a.open(t, t.TempDir())
	o.fetch.idle = 20 * time.Millisecond
	if _, err := o.Resolve(t.Context(), []string{"p"}, nil); err == nil || !strings.Contains(err.Error(), "no data for 20ms") {
		t.Errorf("Resolve: %v, want the stall reported", err)
	}
}

func unpackOne(t *testing.T, b []byte, keep func(string) bool, change func(*Archive)) (memory, error) {
	t.Helper()
	a := newTestArchive(t)
	a.publish(t, stanza{name: "p", version: "1", deb: b})
	o := a.open(t, t.TempDir())
	if change != nil {
		change(o)
	}
	pkgs, err := o.Resolve(t.Context(), []string{"p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := memory{}
	return m, o.Unpack(t.Context(), pkgs, m, keep, nil)
}

// TestUnpack: A package unpacks with its directories, links and hard links, and without set-id
// bits.
func TestUnpack(t *testing.T) {
	for _, ext := range []string{"", ".gz", ".zst"} {
		b := deb(
			t, ext,
			directory("./"), directory("./bin/"), directory("./usr/"),
			file("./bin/dash", "shell", 0o4755),
			symlink("./lib64/ld.so", "/lib/x/ld.so"),
			directory("./usr/share/empty/"),
			file("./usr/share/doc/p/copyright", "c", 0o644),
			hardlink("./usr/bin/twin", "./bin/dash"),
			hardlink("./usr/bin/third", "bin/dash"),
			file("./usr/share/ca-certificates/b.crt", "BBB\n", 0o644),
			file("./usr/share/ca-certificates/c.crt", "CCC", 0o644),
		)
		keep, err := Keep([]string{"usr/share/doc", "**/b.crt"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := unpackOne(t, b, keep, nil)
		want := memory{
			"bin": "→ usr/bin", "sbin": "→ usr/sbin", "lib": "→ usr/lib", "lib64": "→ usr/lib64",
			"usr": "dir", "usr/bin": "dir", "usr/sbin": "dir", "usr/lib": "dir", "usr/lib64": "dir", "usr/share": "dir", "usr/share/ca-certificates": "dir",
			"usr/bin/dash": "755 shell", "usr/bin/twin": "755 shell", "usr/bin/third": "755 shell", "usr/bin/sh": "→ dash",
			"usr/lib64/ld.so":                 "→ /lib/x/ld.so",
			"usr/share/ca-certificates/c.crt": "644 CCC",
			"etc":                             "dir", "etc/ssl": "dir", "etc/ssl/certs": "dir", "etc/ssl/certs/ca-certificates.crt": "644 CCC\n",
			"usr/lib/ssl": "dir", "usr/lib/ssl/cert.pem": "644 CCC\n",
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("data.tar%s: %v (-want +got):\n%s", ext, err, diff)
		}
	}
}

// TestUnpackSparse: The holes of a sparse file count against the size limit, although they take no
// room in the archive (tar(5), "GNU.sparse").
func TestUnpackSparse(t *testing.T) {
	var data bytes.Buffer
	member := func(name string, kind byte, content string) {
		h := make([]byte, 512)
		copy(h, name)
		copy(h[100:], "0000644\x000000000\x000000000\x00")
		copy(h[124:], fmt.Sprintf("%011o\x00%011o\x00", len(content), 1700000000))
		copy(h[148:], "        ")
		h[156] = kind
		copy(h[257:], "ustar\x0000")
		sum := 0
		for _, b := range h {
			sum += int(b)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		data.Write(h)
		data.WriteString(content)
		data.Write(make([]byte, (512-len(content)%512)%512))
	}
	var records strings.Builder
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=./zero", "GNU.sparse.realsize=1099511627776"} {
		fmt.Fprintf(&records, "%d %s\n", len(r)+4, r)
	}
	member("./PaxHeaders/zero", 'x', records.String())
	sparse := "1\n1099511627776\n0\n"
	member("./GNUSparseFile.0/zero", '0', sparse+strings.Repeat("\x00", 512-len(sparse)))
	data.Write(make([]byte, 1024))
	_, err := unpackOne(t, ar("", data.Bytes()), nil, nil)
	if !errors.Is(err, errTooLarge) {
		t.Errorf("Unpack of a terabyte of holes: %v, want %v", err, errTooLarge)
	}
}

// TestUnpackHostile: A package with a path out of the tree, a device, or more files or bytes than
// allowed is refused.
func TestUnpackHostile(t *testing.T) {
	many := make([]tar.Header, 12)
	for i := range many {
		many[i] = file(fmt.Sprintf("./f%d", i), "", 0)
	}
	tests := map[string]struct {
		members []tar.Header
		want    error
	}{
		"climbing":                  {[]tar.Header{file("./../x", "", 0)}, ErrUnsafe},
		"climbing inside":           {[]tar.Header{file("./a/../../x", "", 0)}, ErrUnsafe},
		"absolute":                  {[]tar.Header{file("/etc/x", "", 0)}, ErrUnsafe},
		"empty segment":             {[]tar.Header{file("./a//b", "", 0)}, ErrUnsafe},
		"device":                    {[]tar.Header{{Typeflag: tar.TypeChar, Name: "./dev/x", Devmajor: 1, Devminor: 3}}, ErrUnsafe},
		"fifo":                      {[]tar.Header{{Typeflag: tar.TypeFifo, Name: "./run/x"}}, ErrUnsafe},
		"through a symlink":         {[]tar.Header{symlink("./d", "/etc"), file("./d/x", "", 0)}, ErrUnsafe},
		"merged dir as symlink":     {[]tar.Header{symlink("./lib", "/etc"), file("./lib/x", "", 0)}, ErrUnsafe},
		"merged dir as file":        {[]tar.Header{file("./bin", "", 0)}, ErrUnsafe},
		"symlink out of the tree":   {[]tar.Header{symlink("./a/b", "../../x")}, ErrUnsafe},
		"symlink to nothing":        {[]tar.Header{symlink("./a/b", "")}, ErrUnsafe},
		"hard link out of the tree": {[]tar.Header{hardlink("./a", "../x")}, ErrUnsafe},
		"hard link to nothing":      {[]tar.Header{hardlink("./a", "./b")}, ErrUnsafe},
		"hard link to a symlink":    {[]tar.Header{symlink("./b", "/etc/shadow"), hardlink("./a", "./b")}, ErrUnsafe},
		"file over a directory":     {[]tar.Header{file("./a/b", "", 0), file("./a", "", 0)}, ErrUnsafe},
		"too many members":          {many, ErrUnsafe},
		"bomb":                      {[]tar.Header{file("./zero", strings.Repeat("\x00", 1<<20), 0)}, errTooLarge},
		"large hard link":           {[]tar.Header{file("./a", strings.Repeat("x", 2000), 0), hardlink("./b", "./a")}, ErrUnsafe},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := unpackOne(t, deb(t, ".gz", tt.members...), nil, func(o *Archive) {
				o.limits = limits{deb: 1 << 20, unpacked: 64 << 10, entries: 10, index: 1 << 20, link: 1000}
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("Unpack: %v, want %v", err, tt.want)
			}
		})
	}
	good := deb(t, ".gz", file("./a", strings.Repeat("some content ", 100), 0))
	for name, b := range map[string][]byte{
		"cut in the data":   good[:len(good)-30],
		"cut in the header": good[:70],
		"no ar":             []byte("PK\x03\x04 something else"),
		"empty":             {},
		"lzma":              bytes.Replace(good, []byte("data.tar.gz  "), []byte("data.tar.lzma"), 1),
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := unpackOne(t, b, nil, nil); err == nil {
				t.Errorf("Unpack: no error, wrote %v", m)
			}
		})
	}
}

// On Debian 13 and Ubuntu 24.04 packages know only usr; base-files has the links.
func TestUnpackMerged(t *testing.T) {
	got, err := unpackOne(t, deb(t, ".gz",
		symlink("./bin", "usr/bin"), symlink("./lib64", "usr/lib64"),
		file("./usr/lib64/ld.so", "ld", 0o755), file("./usr/sbin/x", "x", 0o755)), nil, nil)
	want := memory{
		"bin": "→ usr/bin", "sbin": "→ usr/sbin", "lib": "→ usr/lib", "lib64": "→ usr/lib64",
		"usr": "dir", "usr/bin": "dir", "usr/sbin": "dir", "usr/lib": "dir", "usr/lib64": "dir",
		"usr/lib64/ld.so": "755 ld", "usr/sbin/x": "755 x",
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Unpack: %v (-want +got):\n%s", err, diff)
	}
}

// TestUnpackLargePackage: A package file larger than the limit is refused.
func TestUnpackLargePackage(t *testing.T) {
	_, err := unpackOne(t, deb(t, "", file("./x", "", 0)), nil, func(o *Archive) { o.limits.deb = 100 })
	if err == nil || !strings.Contains(err.Error(), "package p") || !strings.Contains(err.Error(), "more than 100") {
		t.Errorf("Unpack: %v, want the package refused for its size", err)
	}
}

func TestUnpackCancelled(t *testing.T) {
	a := newTestArchive(t)
	a.publish(t, stanza{name: "p", version: "1", deb: deb(t, "", file("./x", "", 0))})
	o := a.open(t, t.TempDir())
	pkgs, err := o.Resolve(t.Context(), []string{"p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Unpack(ctx, pkgs, memory{}, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Unpack: %v, want context.Canceled", err)
	}
}

// TestUnpackMissing: The error for a missing package file names the package.
func TestUnpackMissing(t *testing.T) {
	a := newTestArchive(t)
	a.publish(t, stanza{name: "p", version: "1", deb: deb(t, "", file("./x", "", 0))})
	o := a.open(t, t.TempDir())
	pkgs, err := o.Resolve(t.Context(), []string{"p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	delete(a.files, "/pool/p_1.deb")
	a.mu.Unlock()
	err = o.Unpack(t.Context(), pkgs, memory{}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "package p: fetch "+a.URL+"/pool/p_1.deb: HTTP status 404") {
		t.Errorf("Unpack: %v, want the package, the address and the status", err)
	}
}
