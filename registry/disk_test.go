package registry

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestMain is a registry of its own if FRE_REGISTRY_CHILD names a directory: it serves the
// directory on a loopback port and prints the port.
func TestMain(m *testing.M) {
	dir := os.Getenv("FRE_REGISTRY_CHILD")
	if dir == "" {
		os.Exit(m.Run())
	}
	r, err := Open(Config{Dir: dir, Log: slog.New(slog.DiscardHandler), Grace: -1})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	l, err := Listen(context.Background(), ListenConfig{Address: "127.0.0.1:0"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	s := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	fmt.Fprintln(os.Stderr, s.Serve(l))
	os.Exit(1)
}

// child serves a directory in a process of its own, and returns the base of the URLs. The caller
// kills the process and waits for it.
func child(t testing.TB, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "FRE_REGISTRY_CHILD="+dir)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		t.Fatal(errors.Join(err, cmd.Wait()))
	}
	return cmd, "http://" + strings.TrimSpace(addr)
}

// tree lists the files of a registry with size and time.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if strings.HasPrefix(rel, tmpDir) {
			return nil
		}
		info, err := d.Info()
		all = append(all, fmt.Sprint(rel, " ", info.Size(), " ", info.ModTime()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// count counts the files below a directory of a registry.
func count(t testing.TB, dir string) int {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return n
}

// TestOpen: One process serves a directory; a second one, and a faulty configuration, are refused.
func TestOpen(t *testing.T) {
	fretest.CheckLeaks(t)
	log := slog.New(slog.DiscardHandler)
	refused := func(dir string, cfg Config, want string) {
		t.Helper()
		cfg.Dir, cfg.Log = dir, log
		r, err := Open(cfg)
		if err == nil {
			_ = r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want an error that says %q", err, want)
		}
	}
	dir := t.TempDir()
	r, err := Open(Config{Dir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	refused(dir, Config{}, ErrInUse.Error())
	refused(dir, Config{ReadOnly: true}, ErrInUse.Error())
	copied, err := unix.Dup(int(r.lock.Fd())) // as a child between fork and exec has
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	refused(t.TempDir(), Config{ReadOnly: true}, "version")
	refused(filepath.Join(dir, "version"), Config{}, "not a directory")
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte("fre registry 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(dir, Config{}, "a newer FRE")
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(other, Config{}, "holds x but no registry")
}

// Links out of the registry's directory lead nowhere: the registry reads and writes nothing
// outside.
func TestLinksOutside(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	c := client{t: t, base: "http://" + serve(t, open(t, dir, Config{}))}
	c.pushImage("a", "1", "{}")
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte(dig("secret")), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"repos/b": outside, "repos/a/_tags/secret": filepath.Join(outside, "secret")} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	c.want(c.do("GET", "/v2/a/manifests/secret", nil), 500, "UNKNOWN")
	c.want(c.do("POST", "/v2/b/blobs/uploads/?digest="+dig("x"), strings.NewReader("x")), 500, "UNKNOWN")
	if n := count(t, outside); n != 1 {
		t.Errorf("%d files outside, want the one", n)
	}
}

// TestUploadOutlives interrupts an upload by a broken connection and by a restart. The upload goes
// on each time.
func TestUploadOutlives(t *testing.T) {
	fretest.CheckLeaks(t)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	dir := t.TempDir()
	content := strings.Repeat("0123456789", 100_000)
	half := len(content) / 2
	var loc string
	session := func(do func(c client)) {
		r, err := Open(Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		s, addr := server(t, r)
		do(client{t: t, base: "http://" + addr})
		s()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	session(func(c client) {
		loc = c.start("a")
		c.want(c.do("PATCH", loc, strings.NewReader(content[:half])), 202, "")
	})
	session(func(c client) {
		// Announces the whole body and breaks off.
		req, err := http.NewRequestWithContext(t.Context(), "PATCH", c.base+loc, io.MultiReader(strings.NewReader(content[half:half+1000]), errorReader{}))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = int64(len(content) - half)
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
			t.Fatal("a request broke off and had an answer")
		}
		rest := func(at int) reply {
			return c.do("PUT", loc+"?digest="+dig(content), strings.NewReader(content[at:]), fmt.Sprintf("Content-Range: %d-%d", at, len(content)-1))
		}
		// The request waits for the broken one, whose bytes may be kept.
		got := rest(half)
		if got.status == http.StatusRequestedRangeNotSatisfiable {
			var last int
			if _, err := fmt.Sscanf(got.header.Get("Range"), "0-%d", &last); err != nil || last >= half+1000 {
				t.Errorf("Range %q", got.header.Get("Range"))
			}
			got = rest(last + 1)
		}
		c.want(got, 201, "")
		if got := c.do("GET", "/v2/a/blobs/"+dig(content), nil); got.body != content {
			t.Errorf("got %d bytes, %s", len(got.body), dig(got.body))
		}
	})
	if n := count(t, filepath.Join(dir, "uploads")); n != 0 {
		t.Errorf("%d uploads left", n)
	}
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("the client is gone") }

// TestLaterRequestWins: If a request hangs in the middle of an upload, the client's next request
// takes over the upload.
func TestLaterRequestWins(t *testing.T) {
	c := newClient(t, Config{})
	loc := c.start("a")
	body, feed := io.Pipe()
	first := make(chan reply, 1)
	go func() { first <- c.do("PATCH", loc, body) }()
	// The hanging request reads, so it holds the upload.
	if _, err := feed.Write([]byte(strings.Repeat("x", uploadBuffer))); err != nil {
		t.Fatal(err)
	}
	for c.do("GET", loc, nil).header.Get("Range") == "0-0" {
		if t.Context().Err() != nil {
			t.Fatal("nothing comes")
		}
	}
	c.want(c.do("DELETE", loc, nil), 204, "")
	c.want(<-first, 409, "BLOB_UPLOAD_INVALID")
	_ = feed.CloseWithError(io.ErrUnexpectedEOF)
	c.want(c.do("GET", loc, nil), 404, "BLOB_UPLOAD_UNKNOWN")
}

// TestAtOnce: All acknowledged content is whole after pushes of equal and different content at
// once, with deletions and collections in between.
func TestAtOnce(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, Config{Grace: -1})
	c := client{t: t, base: "http://" + serve(t, r)}
	collect := make(chan struct{}, 1)
	var collecting, pushing sync.WaitGroup
	collecting.Go(func() {
		for range collect {
			if _, err := r.Collect(t.Context(), CollectOptions{Untagged: true}); err != nil {
				t.Error(err)
			}
		}
	})
	shared := strings.Repeat("shared", 10_000)
	for i := range 4 {
		pushing.Go(func() {
			for n := range 8 {
				name, own := fmt.Sprintf("r%d", i%2), fmt.Sprintf("%d of %d", n, i)
				m := image("{}", shared, own)
				select {
				case collect <- struct{}{}:
				default:
				}
				// Without a grace period a blob may go before its manifest comes. The registry says
				// so, and the client pushes the blob again.
				for {
					for _, content := range []string{"{}", shared, own} {
						c.push(name, content)
					}
					got := c.do("PUT", "/v2/"+name+"/manifests/"+fmt.Sprintf("t%d-%d", i, n), strings.NewReader(m))
					if got.status == 201 {
						break
					}
					c.want(got, 400, "MANIFEST_BLOB_UNKNOWN")
				}
				if n%4 == 3 {
					c.want(c.do("DELETE", "/v2/"+name+"/manifests/"+dig(m), nil), 202, "")
				}
			}
		})
	}
	pushing.Wait()
	close(collect)
	collecting.Wait()
	age(t, dir)
	if _, err := r.Collect(t.Context(), CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		for n := range 8 {
			name := fmt.Sprintf("r%d", i%2)
			status := 200
			if n%4 == 3 {
				status = 404
			}
			if got := c.do("GET", fmt.Sprintf("/v2/%s/manifests/t%d-%d", name, i, n), nil); got.status != status {
				t.Errorf("manifest %d of %d: %d, want %d", n, i, got.status, status)
			}
			own := fmt.Sprintf("%d of %d", n, i)
			if got := c.do("GET", "/v2/"+name+"/blobs/"+dig(own), nil); got.status != status || status == 200 && got.body != own {
				t.Errorf("blob %q: %d %q, want %d", own, got.status, got.body, status)
			}
		}
	}
	for _, name := range []string{"r0", "r1"} {
		if got := c.do("GET", "/v2/"+name+"/blobs/"+dig(shared), nil); got.body != shared {
			t.Errorf("%s: the shared blob is %d %.100q", name, got.status, got.body)
		}
	}
	if got, want := count(t, filepath.Join(dir, "blobs")), 2+4*6; got != want {
		t.Errorf("%d files of content, want %d", got, want)
	}
}

// TestCrash: After kill -9 during pushes all acknowledged content is present and whole, and a
// collection leaves nothing else.
func TestCrash(t *testing.T) {
	fretest.CheckLeaks(t)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	dir := t.TempDir()
	rnd := fretest.Rand(t)
	acknowledged := map[string]string{} // tag → manifest
	for round := range 4 {
		cmd, base := child(t, dir)
		// Requests fail after the kill.
		send := func(method, path string, body io.Reader) (string, bool) {
			req, err := http.NewRequestWithContext(t.Context(), method, base+path, body)
			if err != nil {
				t.Error(err)
				return "", false
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				return "", false
			}
			defer resp.Body.Close()
			if resp.StatusCode >= 300 {
				text, _ := io.ReadAll(resp.Body)
				t.Errorf("%s %s: %s %s", method, path, resp.Status, text)
			}
			return resp.Header.Get("Location"), true
		}
		kill := 1 + rnd.IntN(25)
		if round == 0 { // after the first manifest: by chance all rounds could end before theirs
			kill += 2
		}
		pushed := 0
		for n := 0; ; n++ {
			contents := []string{"{}", strings.Repeat(fmt.Sprintf("%d-%d ", round, n), 20_000)}
			ok := true
			for _, content := range contents {
				var loc string
				if loc, ok = send("POST", "/v2/a/blobs/uploads/", nil); ok {
					_, ok = send("PATCH", loc, strings.NewReader(content[:len(content)/2]))
				}
				if pushed++; pushed == kill {
					go cmd.Process.Kill() //nolint:errcheck // Wait tells
				}
				if ok {
					_, ok = send("PUT", loc+"?digest="+dig(content), strings.NewReader(content[len(content)/2:]))
				}
				if !ok {
					break
				}
			}
			m := image(contents...)
			tag := fmt.Sprintf("t%d-%d", round, n)
			if ok {
				_, ok = send("PUT", "/v2/a/manifests/"+tag, strings.NewReader(m))
			}
			if !ok {
				break
			}
			acknowledged[tag] = m
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the registry ended by itself")
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		checkWhole(t, dir, acknowledged)
	}
	if len(acknowledged) == 0 {
		t.Error("nothing was acknowledged in any round")
	}
}

// checkWhole opens a registry and checks all of its content. Collect leaves only the content of
// manifests.
func checkWhole(t *testing.T, dir string, acknowledged map[string]string) {
	t.Helper()
	r, err := Open(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n := count(t, filepath.Join(dir, "tmp")); n != 0 {
		t.Errorf("%d temporary files", n)
	}
	age(t, dir)
	if _, err := r.Collect(t.Context(), CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := count(t, filepath.Join(dir, "uploads")); n != 0 {
		t.Errorf("%d uploads after a collection", n)
	}
	for tag, m := range acknowledged {
		d, err := r.resolve("a", tag)
		if err != nil || d.String() != dig(m) {
			t.Errorf("tag %s: %v, %v; want %s", tag, d, err, dig(m))
		}
	}
	c := &collection{Registry: r, cutoff: time.Now()}
	all, err := c.manifests(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, m := range all {
		for _, desc := range m.descriptors() {
			want[desc.Digest] = true
		}
	}
	got := map[string]bool{}
	for _, algorithm := range []string{"sha256", "sha512"} {
		files, err := filepath.Glob(filepath.Join(dir, "blobs", algorithm, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if dig(string(content)) != "sha256:"+filepath.Base(file) {
				t.Errorf("%s holds %d other bytes", file, len(content))
			}
			got[dig(string(content))] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
}

// TestRoom: The registry refuses a push that would take the reserved disk space, and continues the
// push once the disk has room.
func TestRoom(t *testing.T) {
	var full error
	r, err := Open(Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Grace: -1, Room: func() error { return full }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	c := client{t: t, base: "http://" + serve(t, r)}
	c.pushImage("a", "1", "{}")
	full = unix.ENOSPC
	loc := c.start("a")
	c.want(c.do("PATCH", loc, strings.NewReader("x")), 507, "UNKNOWN")
	c.want(c.do("PUT", "/v2/a/manifests/2", strings.NewReader(image("{}")), "Content-Type: application/vnd.oci.image.manifest.v1+json"), 507, "UNKNOWN")
	if got := c.do("GET", "/v2/a/manifests/1", nil); got.body != image("{}") {
		t.Errorf("meanwhile: %d %q", got.status, got.body)
	}
	full = nil
	c.want(c.do("PUT", loc+"?digest="+dig("x"), strings.NewReader("x")), 201, "")
}

// TestDiskFull: A push to a full disk fails with this reason, and goes on once the disk has room.
func TestDiskFull(t *testing.T) {
	fretest.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r, err := Open(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	c := client{t: t, base: "http://" + serve(t, r)}
	c.pushImage("a", "1", "{}")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("0123456789abcdef", 48<<10)
	got := c.want(c.do("POST", "/v2/a/blobs/uploads/?digest="+dig(content), strings.NewReader(content)), 507, "UNKNOWN")
	if !strings.Contains(got.body, "disk is full") {
		t.Errorf("it says %s", got.body)
	}
	loc := c.start("a")
	c.want(c.do("PATCH", loc, strings.NewReader(content)), 507, "UNKNOWN")
	if got := c.do("GET", "/v2/a/manifests/1", nil); got.body != image("{}") {
		t.Errorf("meanwhile: %d %q", got.status, got.body)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	var last int
	if _, err := fmt.Sscanf(c.do("GET", loc, nil).header.Get("Range"), "0-%d", &last); err != nil || last == 0 {
		t.Fatalf("nothing was kept: %d, %v", last, err)
	}
	rest := fmt.Sprintf("Content-Range: %d-%d", last+1, len(content)-1)
	c.want(c.do("PUT", loc+"?digest="+dig(content), strings.NewReader(content[last+1:]), rest), 201, "")
	if n := count(t, filepath.Join(dir, "uploads")); n != 0 {
		t.Errorf("%d uploads left", n)
	}
}
