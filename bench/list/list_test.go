package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/rawhttp"
	"github.com/fre-engine/fre/store"
)

// The archive for docker load names files in the archive by their right digests.
func TestArchive(t *testing.T) {
	var b bytes.Buffer
	if err := archive(&b, 3, 2); err != nil {
		t.Fatal(err)
	}
	content := map[string][]byte{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[h.Name] != nil {
			t.Errorf("%s comes twice", h.Name)
		}
		if content[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(content["manifest.json"], &manifest); err != nil || len(manifest) != 3 {
		t.Fatalf("manifest.json lists %d images, error %v, want 3:\n%s", len(manifest), err, content["manifest.json"])
	}
	layers := map[string]bool{}
	for i, image := range manifest {
		var config struct {
			RootFS struct {
				IDs []string `json:"diff_ids"`
			} `json:"rootfs"`
		}
		if err := json.Unmarshal(content[image.Config], &config); err != nil {
			t.Errorf("%s: %v", image.Config, err)
		}
		var ids []string
		for _, path := range image.Layers {
			layers[path] = true
			ids = append(ids, "sha256:"+hexSum(content[path]))
		}
		if diff := cmp.Diff(ids, config.RootFS.IDs); diff != "" {
			t.Errorf("layers of image %d and diff_ids (-layers +config):\n%s", i, diff)
		}
		if diff := cmp.Diff([]string{imageName(i) + ":1"}, image.RepoTags); diff != "" {
			t.Errorf("names of image %d (-want +got):\n%s", i, diff)
		}
	}
	if len(layers) != 4 {
		t.Errorf("%d layers, want one of each image and one of all", len(layers))
	}
}

// seed makes the images with the given number of parts, and can add more images later.
func TestSeed(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	for _, s := range [][3]int{{0, 3, 2}, {3, 5, 4}} {
		if err := seed(t.Context(), state, s[0], s[1], s[2]); err != nil {
			t.Fatal(err)
		}
	}
	st, err := store.Open(filepath.Join(state, "store"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	parts := map[string]int{}
	for _, img := range st.Images() {
		parts[img.Name] = len(img.Parts)
	}
	want := map[string]int{imageName(0): 2, imageName(1): 2, imageName(2): 2, imageName(3): 4, imageName(4): 4}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Errorf("parts of the images (-want +got):\n%s", diff)
	}
}

// All requests take turns; a failing request does not end the rest.
func TestAsk(t *testing.T) {
	calls, prepared, usage, ended := 0, 0, time.Duration(0), 0
	good := &asked{
		Name:    "good",
		prepare: func() error { prepared++; return nil },
		do:      func() error { calls++; return nil },
		usage:   func() (time.Duration, error) { usage += 30 * time.Millisecond; return usage, nil },
		end:     func() error { ended++; return nil },
	}
	bad := &asked{Name: "bad", do: func() error { return io.ErrUnexpectedEOF }}
	if err := ask(t.Context(), turns{rounds: 2, slice: time.Hour, calls: 3}, bad, good); err != nil {
		t.Fatal(err)
	}
	if calls != 7 || prepared != 7 || len(good.Latency) != 6 || ended != 1 {
		t.Errorf("%d calls, %d counted, closed %d times, want 7, 6 and once", calls, len(good.Latency), ended)
	}
	if diff := cmp.Diff([]time.Duration{10 * time.Millisecond, 10 * time.Millisecond}, good.CPU); diff != "" {
		t.Errorf("CPU time per call (-want +got):\n%s", diff)
	}
	if bad.Err != io.ErrUnexpectedEOF.Error() || bad.p50() != 0 {
		t.Errorf("the one that fails: %+v", bad)
	}
}

// The CPU time of a working process grows, and a process that has ended adds none.
func TestCPUTime(t *testing.T) {
	pids := []int{os.Getpid(), 1 << 30}
	before, err := cpuTime(pids)
	if err != nil {
		t.Fatal(err)
	}
	for now := before; now == before; {
		if now, err = cpuTime(pids); err != nil {
			t.Fatal(err)
		}
	}
}

// The report shows reached and missed aims, ratios to dockerd, and missing measurements.
func TestMarkdown(t *testing.T) {
	ms := func(n float64) []time.Duration { return []time.Duration{time.Duration(n * float64(time.Millisecond))} }
	r := &result{
		Size: fullSize,
		Asked: []*asked{
			{Name: "few/fre", Latency: ms(0.2), CPU: ms(0.25)},
			{Name: "few/docker", Latency: ms(0.5)},
			{Name: "few/unchanged", Err: "GET /v1/images: no ETag"},
			{Name: "few/dockerd", Latency: ms(150), CPU: ms(100)},
			{Name: "version/docker", Latency: ms(20)},
			{Name: "version/floor", Latency: ms(16)},
			{Name: "ps/docker", Latency: ms(30)},
			{Name: "ps/floor", Latency: ms(24)},
			{Name: "ps/dockerd", Latency: ms(300)},
		},
		ManyStarts: ms(1500), ManyBytes: 80 << 20, EmptyBytes: 20 << 20,
		Syscalls: counted{PerBox: 1.5}, DockerSyscalls: counted{PerBox: 3},
	}
	table := r.markdown()
	for _, want := range []string{
		"| images, 2,000 | 0.2 ms | 0.3 ms | yes | 150 ms | 750 |",
		"| images, 2,000, Docker's format | 0.5 ms | 0.4 ms | no | 150 ms | 300 |",
		"| images, 2,000, unchanged (304) | not measured | 0.1 ms |  |  |  |",
		"| images, 10,000 | not measured | 1 ms |  |  |  |",
		"| CPU time per list of 2,000 images, to be a 300th of dockerd's | 0.25 ms | 0.333 ms | yes | 100 ms | 400 |",
		"| system calls of `ps -a -s` for each running sandbox | 1.5 | 2 | yes |  |  |",
		"| system calls of `ps -a -s` for each running sandbox, Docker's format | 3 | 2 | no |  |  |",
		"| `docker ps --all --size`, the whole process | 30 ms |  |  | 300 ms | 10 |",
		"| `docker ps --all --size`, the whole process, the client's own time (FRE's answers out of memory) | 24 ms |  |  |  |  |",
		"| `docker ps --all --size`, the whole process, FRE's addition to the client's time | 6 ms |  |  |  |  |",
		"| `docker images`, the whole process, FRE's addition to the client's time | not measured |  |  |  |  |",
		"| `docker ps --all --size` ÷ `docker version` | 1.5 × | 1.25 × | no |  |  |",
		"| `docker ps --all --size` ÷ `docker version`, the client's own time | 1.5 × |  |  |  |  |",
		"| start to the first answer, 10,000 images | 1500 ms | 1000 ms | no |  |  |",
		"| memory for the images | 60 MiB | 64 MiB | yes |  |  |",
	} {
		if !strings.Contains(table, want+"\n") {
			t.Errorf("no line %q in:\n%s", want, table)
		}
	}
	if b := (&bench{result: r}); b.failed() == nil || !strings.Contains(b.failed().Error(), "no ETag") {
		t.Errorf("the error of what could not be measured: %v", b.failed())
	}
}

// The floor answers repeated requests from memory unchanged; lists of images can be empty.
func TestFloor(t *testing.T) {
	dir := t.TempDir()
	asked := 0
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		w.Header().Set("Api-Version", "1.50")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, r.URL.String())
	}))
	listener, err := net.Listen("unix", filepath.Join(dir, "engine.sock"))
	if err != nil {
		t.Fatal(err)
	}
	engine.Listener = listener
	engine.Start()
	defer engine.Close()
	for _, empty := range []bool{false, true} {
		asked = 0
		path := filepath.Join(dir, fmt.Sprint(empty))
		f, err := newFloor(path, listener.Addr().String(), empty)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := rawhttp.DialUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for path, want := range map[string]string{"/v1.50/images/json": "[]\n", "/v1.50/containers/json?all=1": "/v1.50/containers/json?all=1"} {
				if !empty {
					want = path
				}
				resp, err := conn.Do(rawhttp.Get("docker", path))
				if err != nil {
					t.Fatal(err)
				}
				if version, _ := resp.Header("Api-Version"); version != "1.50" || resp.Status != http.StatusAccepted || string(resp.Body) != want {
					t.Errorf("%s: status %d, version %q, %q, want 202, 1.50, %q", path, resp.Status, version, resp.Body, want)
				}
			}
		}
		if asked != 2 {
			t.Errorf("the engine was asked %d times, want twice", asked)
		}
		if err := errors.Join(conn.Close(), f.close()); err != nil {
			t.Error(err)
		}
	}
}
