package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/video/client"
)

// world is a service without an engine in a process of its own, and its clients.
type world struct {
	state, addr string
	home        string // home directory of the clients
	args        []string
	cmd         *exec.Cmd
	through     string // address for uploads; default addr
}

func newWorld(t *testing.T, state string, args ...string) *world {
	t.Helper()
	fretest.CheckLeaks(t)
	w := &world{state: state, home: t.TempDir(), args: args}
	var err error
	if w.addr, err = testdaemon.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	w.start(t)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := w.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := w.cmd.Wait(); err != nil {
			t.Errorf("fre-video serve: %v", err)
		}
	})
	return w
}

func (w *world) start(t *testing.T) {
	t.Helper()
	w.cmd = exec.Command("fre-video", append([]string{"serve", "--state", w.state, "--listen", w.addr, "--engine", filepath.Join(w.home, "none.sock"), "--log-level", "error"}, w.args...)...)
	w.cmd.Stderr = t.Output()
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := reachable(w.addr); err != nil {
		t.Fatal(err)
	}
}

func (w *world) kill(t *testing.T) {
	t.Helper()
	if err := w.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = w.cmd.Wait() // killed
}

// command returns a command of fre-video.
func (w *world) command(args ...string) *exec.Cmd {
	to := w.addr
	if w.through != "" {
		to = w.through
	}
	cmd := exec.Command("fre-video", args...)
	cmd.Env = append(os.Environ(), "FRE_VIDEO_URL=http://"+to, "XDG_STATE_HOME="+w.home)
	return cmd
}

// upload uploads a file, and returns the asset's id.
func (w *world) upload(t *testing.T, path string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd := w.command("upload", path)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var a client.Asset
	if err != nil || json.Unmarshal(out, &a) != nil || a.Asset == nil {
		t.Fatalf("upload %s: %v\n%s%s", path, err, out, &errs)
	}
	return a.ID
}

// assets returns all assets by id.
func (w *world) assets(t *testing.T) map[string]client.Asset {
	t.Helper()
	c, err := client.New("http://" + w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all, err := c.Assets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]client.Asset{}
	for _, a := range all {
		found[a.ID] = a
	}
	return found
}

// whole checks that an asset's source equals the file at path, and that work on the asset has
// begun.
func (w *world) whole(t *testing.T, id, path string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(w.state, "assets", id, "source"))
	if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
		t.Errorf("%s: %d bytes of %d arrived, or others: %v", path, len(got), len(want), err)
	}
	if a := w.assets(t)[id]; a.Asset == nil || a.State != "working" || a.Size != int64(len(want)) {
		t.Errorf("%s is %+v", path, a.Asset)
	}
}

// file makes a file of random bytes.
func file(t *testing.T, name string, size int) string {
	t.Helper()
	r := fretest.Rand(t)
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// gate forwards connections to a server. After most bytes from its clients the gate calls then,
// once, and forwards nothing more on those connections.
type gate struct {
	l    net.Listener
	most int64
	then func()
	sent atomic.Int64 // bytes from clients to the server
	once sync.Once
	all  sync.WaitGroup
}

func newGate(t *testing.T, to string, most int64, then func()) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{l: l, most: most, then: then}
	g.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.all.Go(func() { g.serve(c, to) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.all.Wait()
	})
	return g
}

func (g *gate) serve(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	g.all.Go(func() {
		_, _ = io.Copy(c, s) // until either is closed
		_ = c.Close()
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		before := g.sent.Add(int64(n)) - int64(n)
		if g.then != nil && before < g.most && before+int64(n) >= g.most {
			g.once.Do(g.then)
			return
		}
		if _, err := s.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestUploadGoesOn: the same command continues an upload whose client was interrupted or killed. If
// the service is killed, the upload continues by itself. No byte that arrived is sent again.
func TestUploadGoesOn(t *testing.T) {
	w := newWorld(t, t.TempDir())
	const size, half = 12 << 20, 6 << 20
	for name, sig := range map[string]unix.Signal{"interrupted": unix.SIGINT, "killed": unix.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			path := file(t, name+".mp4", size)
			started := make(chan *os.Process, 1)
			g := newGate(t, w.addr, half, func() { _ = (<-started).Signal(sig) })
			w.through = g.l.Addr().String()
			cmd := w.command("upload", path)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			started <- cmd.Process
			err := cmd.Wait()
			if sig == unix.SIGINT && (cmd.ProcessState.ExitCode() != exitInterrupt || !strings.Contains(errs.String(), "run the same command again")) || err == nil {
				t.Errorf("%v: %s", err, &errs)
			}
			before := g.sent.Load()
			id := w.upload(t, path)
			w.whole(t, id, path)
			if sent := g.sent.Load() - before; sent >= size { // bytes in flight are lost
				t.Errorf("all %d bytes were sent once more", size)
			}
			if n := len(w.assets(t)); n != 1 {
				t.Errorf("%d assets", n)
			}
			again := w.upload(t, path)
			if again == id {
				t.Error("what was uploaded is not uploaded anew")
			}
			for _, id := range []string{id, again} {
				if out, err := w.command("rm", id).CombinedOutput(); err != nil {
					t.Errorf("rm: %v %s", err, out)
				}
			}
		})
	}
	t.Run("changed meanwhile", func(t *testing.T) {
		path := file(t, "changed.mp4", size)
		started := make(chan *os.Process, 1)
		g := newGate(t, w.addr, half, func() { _ = (<-started).Signal(unix.SIGINT) })
		w.through = g.l.Addr().String()
		cmd := w.command("upload", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		started <- cmd.Process
		if err := cmd.Wait(); err == nil {
			t.Error("it was not interrupted")
		}
		if err := os.WriteFile(path, bytes.Repeat([]byte("other"), size/5), 0o600); err != nil {
			t.Fatal(err)
		}
		w.whole(t, w.upload(t, path), path)
	})
	t.Run("the service is killed", func(t *testing.T) {
		path := file(t, "service.mp4", size)
		g := newGate(t, w.addr, half, func() {
			w.kill(t)
			w.start(t)
		})
		w.through = g.l.Addr().String()
		w.whole(t, w.upload(t, path), path)
		if sent := g.sent.Load(); sent >= size+half { // bytes in flight are lost
			t.Errorf("%d bytes were sent of %d, of which %d had been sent", sent, size, half)
		}
	})
	if left, err := filepath.Glob(filepath.Join(w.home, "fre-video", "uploads", "*")); err != nil || len(left) != 1 { // of what has changed
		t.Errorf("noted: %v, %v", left, err)
	}
}

// TestUploadsAtOnce: many simultaneous uploads arrive whole, two uploads of the same file included.
func TestUploadsAtOnce(t *testing.T) {
	w := newWorld(t, t.TempDir())
	same := file(t, "same.mp4", 3<<20)
	var mu sync.Mutex
	ids := map[string]string{}
	t.Run("all", func(t *testing.T) {
		for i := range 8 {
			path := same
			if i > 2 {
				path = file(t, fmt.Sprintf("%d.mp4", i), 2<<20+i)
			}
			kept, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Run(filepath.Base(path), func(t *testing.T) {
				t.Parallel()
				id := w.upload(t, path)
				if got, err := os.ReadFile(filepath.Join(w.state, "assets", id, "source")); err != nil || !bytes.Equal(got, kept) {
					t.Errorf("%d bytes of %d, %v", len(got), len(kept), err)
				}
				mu.Lock()
				defer mu.Unlock()
				if other := ids[id]; other != "" {
					t.Errorf("%s and %s are one asset", path, other)
				}
				ids[id] = path
			})
		}
	})
	if n := len(w.assets(t)); n != 8 {
		t.Errorf("%d assets", n)
	}
}

// reply is an answer without its body.
type reply struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// ask sends a request of the tus protocol and returns the answer and its body.
func (w *world) ask(t *testing.T, method, path, body string, fields ...string) (*reply, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+w.addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	r.Header.Set("Content-Type", "application/offset+octet-stream")
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Set(name, value)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return &reply{a.StatusCode, a.Status, a.Header}, string(b)
}

// TestUploadLengths: false lengths and lengths above the limit get an error in the usual JSON form,
// and never more than the announced bytes are stored.
func TestUploadLengths(t *testing.T) {
	w := newWorld(t, t.TempDir(), "--max-bytes", "1000")
	for _, length := range []string{"", "-1", "x", "1e3", "9223372036854775808"} {
		if a, body := w.ask(t, "POST", "/v1/uploads/", "", "Upload-Length: "+length); a.StatusCode != 400 || !strings.HasPrefix(body, `{"error":{"code":"bad_request","message":"`) {
			t.Errorf("length %q: %s %s", length, a.Status, body)
		}
	}
	if a, body := w.ask(t, "POST", "/v1/uploads/", "", "Upload-Length: 1001"); a.StatusCode != 413 || !strings.Contains(body, `"too_large"`) || !strings.Contains(body, "--max-bytes") {
		t.Errorf("too large: %s %s", a.Status, body)
	}
	if n := len(w.assets(t)); n != 0 {
		t.Errorf("%d assets of uploads that were refused", n)
	}
	begin := func(fields ...string) string {
		t.Helper()
		a, body := w.ask(t, "POST", "/v1/uploads/", "", fields...)
		if a.StatusCode != 201 {
			t.Fatalf("%v: %s %s", fields, a.Status, body)
		}
		return "/v1/uploads/" + filepath.Base(a.Header.Get("Location"))
	}
	stored := func(at string) int64 {
		t.Helper()
		info, err := os.Stat(filepath.Join(w.state, "assets", filepath.Base(at), "source"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	at := begin("Upload-Length: 100")
	for _, tt := range []struct {
		name, body string
		fields     []string
		status     int
		code       string
	}{
		{"more than announced", strings.Repeat("x", 101), []string{"Upload-Offset: 0"}, 413, "too_large"},
		{"another offset", "x", []string{"Upload-Offset: 5"}, 409, "in_use"},
		{"no offset", "x", nil, 400, "bad_request"},
		{"an offset below zero", "x", []string{"Upload-Offset: -1"}, 400, "bad_request"},
		{"another type", "x", []string{"Upload-Offset: 0", "Content-Type: video/mp4"}, 400, "bad_request"},
		{"a length once more", "x", []string{"Upload-Offset: 0", "Upload-Length: 50"}, 400, "bad_request"},
		{"another protocol", "x", []string{"Upload-Offset: 0", "Tus-Resumable: 0.2.2"}, 412, "bad_request"},
	} {
		if a, body := w.ask(t, "PATCH", at, tt.body, tt.fields...); a.StatusCode != tt.status || !strings.Contains(body, `"code":"`+tt.code+`"`) {
			t.Errorf("%s: %s %s", tt.name, a.Status, body)
		}
		if n := stored(at); n != 0 {
			t.Fatalf("%s: %d bytes are stored", tt.name, n)
		}
	}
	if a, body := w.ask(t, "PATCH", "/v1/uploads/"+strings.Repeat("n", 16), "x", "Upload-Offset: 0"); a.StatusCode != 404 || !strings.Contains(body, `"not_found"`) {
		t.Errorf("no such upload: %s %s", a.Status, body)
	}
	// A body longer than its stated length is cut there; a shorter body is kept.
	for _, tt := range []struct {
		head, body string
		stored     int64
	}{
		{"Upload-Offset: 0\r\nContent-Length: 10", strings.Repeat("y", 5), 5},
		{"Upload-Offset: 5\r\nTransfer-Encoding: chunked", "64\r\n" + strings.Repeat("y", 100) + "\r\n0\r\n\r\n", 100},
	} {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(c, "PATCH %s HTTP/1.1\r\nHost: h\r\nTus-Resumable: 1.0.0\r\nContent-Type: application/offset+octet-stream\r\nConnection: close\r\n%s\r\n\r\n%s", at, tt.head, tt.body)
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite()
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, c) // until the end
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if n := stored(at); n != tt.stored {
			t.Errorf("%s: %d bytes are stored, want %d", tt.head, n, tt.stored)
		}
	}
	// Without a length at the beginning, the limit still holds.
	for _, body := range []string{strings.Repeat("z", 1001), strings.Repeat("z", 50_000)} {
		late := begin("Upload-Defer-Length: 1")
		if a, text := w.ask(t, "PATCH", late, body, "Upload-Offset: 0"); a.StatusCode != 413 || !strings.Contains(text, `"too_large"`) {
			t.Errorf("%d bytes: %s %s", len(body), a.Status, text)
		}
		if n := stored(late); n > 1000 {
			t.Errorf("%d bytes are stored", n)
		}
		if a, body := w.ask(t, "DELETE", late, ""); a.StatusCode != 204 {
			t.Errorf("DELETE: %s %s", a.Status, body)
		}
	}
	late := begin("Upload-Defer-Length: 1")
	if a, body := w.ask(t, "PATCH", late, "0123", "Upload-Offset: 0"); a.StatusCode != 204 {
		t.Errorf("%s %s", a.Status, body)
	}
	if a, body := w.ask(t, "PATCH", late, "4567", "Upload-Offset: 4", "Upload-Length: 8"); a.StatusCode != 204 {
		t.Errorf("%s %s", a.Status, body)
	}
	if a := w.assets(t)[filepath.Base(late)]; a.Asset == nil || a.State != "working" || a.Size != 8 {
		t.Errorf("%+v", a.Asset)
	}
	// The same for a video sent as the request body.
	before := len(w.assets(t))
	for _, request := range []string{"Content-Length: 100\r\n\r\nshort", "Transfer-Encoding: chunked\r\n\r\n64\r\nshort", "Content-Length: 1001\r\n\r\n" + strings.Repeat("x", 1001)} {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "POST /v1/assets?name=lie HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s", request); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(c) // until the end
		if bytes.Contains(answer, []byte(" 201 ")) {
			t.Errorf("%.60q: %s", request, answer)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := testdaemon.Until(t.Context(), func() error {
		if n := len(w.assets(t)); n != before {
			return fmt.Errorf("%d assets, %d before", n, before)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// tuspy uploads a file with the Python client of tus, in pieces of 1 MiB: the first process stops
// at 3 MiB, a second process continues to the end.
const tuspy = `
import sys
from tusclient.client import TusClient
from tusclient.storage.filestorage import FileStorage
from tusclient.fingerprint.fingerprint import Fingerprint
url, path, notes, stop = sys.argv[1:]
up = TusClient(url).uploader(path, chunk_size=1 << 20, store_url=True, url_storage=FileStorage(notes), fingerprinter=Fingerprint(),
    metadata={"filename": "from python.mp4"}, retries=0)
print(up.offset)
up.upload(stop_at=int(stop) or None)
print(up.url)
`

// TestUploadTuspy: an independent tus client uploads in pieces, stops, and continues, even after
// the service was killed.
func TestUploadTuspy(t *testing.T) {
	w := newWorld(t, t.TempDir())
	path := file(t, "python.mp4", 7<<20+123)
	script, notes := filepath.Join(t.TempDir(), "up.py"), filepath.Join(t.TempDir(), "notes.json")
	if err := os.WriteFile(script, []byte(tuspy), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(stop string) (offset, id string) {
		t.Helper()
		out, err := exec.Command("/usr/bin/python3", script, "http://"+w.addr+"/v1/uploads/", path, notes, stop).CombinedOutput()
		lines := strings.Fields(string(out))
		if err != nil || len(lines) != 2 {
			t.Fatalf("%v\n%s", err, out)
		}
		return lines[0], filepath.Base(lines[1])
	}
	if offset, _ := run("3145728"); offset != "0" {
		t.Errorf("it begins at %s", offset)
	}
	w.kill(t)
	w.start(t)
	offset, id := run("0")
	if offset != "3145728" {
		t.Errorf("it goes on at %s", offset)
	}
	w.whole(t, id, path)
	if a := w.assets(t); len(a) != 1 || a[id].Name != "from python.mp4" {
		t.Errorf("%+v", a)
	}
}

// TestUploadDiskFull: an upload without room above the disk's reserve is refused at once. An upload
// that runs out of room midway gets an error, leaves no partial asset, and continues once there is
// room.
func TestUploadDiskFull(t *testing.T) {
	fretest.RequireRoot(t)
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, filepath.Join(disk, "state"))
	refused := func(path string) {
		t.Helper()
		var errs bytes.Buffer
		cmd := w.command("upload", path)
		cmd.Stderr = &errs
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitError || !strings.Contains(errs.String(), "no space left on device") || !strings.Contains(errs.String(), "run the same command again") {
			t.Errorf("%v: %s", err, &errs)
		}
	}
	// fill fills the disk up to the given number of free bytes.
	fill := func(free int64) (empty func()) {
		t.Helper()
		var s unix.Statfs_t
		if err := unix.Statfs(disk, &s); err != nil {
			t.Fatal(err)
		}
		filler := filepath.Join(disk, "filler")
		if err := os.WriteFile(filler, make([]byte, int64(s.Bavail)*s.Bsize-free), 0o600); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
		}
	}
	large := file(t, "large.mp4", 25<<20)
	refused(large)
	if left, err := filepath.Glob(filepath.Join(w.state, "*", "*")); err != nil || len(left) > 0 || len(w.assets(t)) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}

	a, body := w.ask(t, "POST", "/v1/uploads/", "", "Upload-Length: 8")
	if a.StatusCode != 201 {
		t.Fatalf("%s %s", a.Status, body)
	}
	at := "/v1/uploads/" + filepath.Base(a.Header.Get("Location"))
	empty := fill(0)
	if a, body := w.ask(t, "POST", "/v1/uploads/", "", "Upload-Length: 1"); a.StatusCode != 507 || !strings.Contains(body, `"no_space"`) {
		t.Errorf("begin on a full disk: %s %s", a.Status, body)
	}
	if a, body := w.ask(t, "POST", "/v1/assets", "video"); a.StatusCode != 507 || !strings.Contains(body, `"no_space"`) {
		t.Errorf("post to a full disk: %s %s", a.Status, body)
	}
	if dirs, err := os.ReadDir(filepath.Join(w.state, "assets")); err != nil || len(dirs) != 1 {
		t.Errorf("left: %v, %v", dirs, err)
	}
	if a, body := w.ask(t, "PATCH", at, "12345678", "Upload-Offset: 0"); a.StatusCode != 507 {
		t.Errorf("the first piece on a full disk: %s %s", a.Status, body)
	}
	empty()
	empty = fill(4096) // room for the bytes, but not for the reserve
	if a, body := w.ask(t, "PATCH", at, "12345678", "Upload-Offset: 0"); a.StatusCode != 507 || !strings.Contains(body, "stay free for events") {
		t.Errorf("on a disk with its reserve left: %s %s", a.Status, body)
	}
	if a, _ := w.ask(t, "HEAD", at, ""); a.StatusCode != 200 || a.Header.Get("Upload-Offset") != "0" {
		t.Errorf("on a disk with its reserve left: %s %v", a.Status, a.Header)
	}
	empty()
	if a, body := w.ask(t, "PATCH", at, "12345678", "Upload-Offset: 0"); a.StatusCode != 204 {
		t.Errorf("there is room: %s %s", a.Status, body)
	}
	if a := w.assets(t)[filepath.Base(at)]; a.Asset == nil || a.State != "working" {
		t.Errorf("there is room: %+v", a.Asset)
	}

	half := file(t, "half.mp4", 12<<20)
	var filled func()
	var once sync.Once
	g := newGate(t, w.addr, 1, nil)
	w.through = g.l.Addr().String()
	c, err := client.New("http://" + w.through)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, err := os.Open(half)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	video := client.Video{Name: "half.mp4", Data: f, Size: 12 << 20}
	id, err := c.Begin(t.Context(), video)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Continue(t.Context(), id, video, func(sent int64) {
		if sent > 0 {
			return
		}
		once.Do(func() { filled = fill(4 << 20) })
	})
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("12 MiB on 4: %v", err)
	}
	filled()
	if err := c.Continue(t.Context(), id, video, func(int64) {}); err != nil {
		t.Error(err)
	}
	w.whole(t, id, half)
}
