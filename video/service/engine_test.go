package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/servertest"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// transcoder is an engine without sandboxes: this process does the function's work with the
// function's code.
type transcoder struct {
	*servertest.Engine
	sources string // directory

	mu    sync.Mutex
	asked map[string]int                              // count of each job; a chunk's name has its first second, as in "/chunk 24"; PUT and DELETE of a source count too
	meet  func(ctx context.Context, job string) error // called before each job; may be nil
	lies  map[string]any                              // false heads of answers, sent without any work, by the job's path
	made  map[string][]byte                           // answers, by path, question and source: a test repeats jobs, and encoding takes most of its time
}

// job returns the answer to a job: a head in JSON, and bytes. Equal jobs are done once.
func (tr *transcoder) job(path string, question []byte) ([]byte, error) {
	of := struct{ Source string }{}
	if err := json.Unmarshal(question, &of); err != nil {
		return nil, err
	}
	file := filepath.Join(tr.sources, of.Source)
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key := path + string(bytes.ReplaceAll(question, []byte(of.Source), nil)) + string(source)
	tr.mu.Lock()
	made := tr.made[key]
	tr.mu.Unlock()
	if made != nil {
		return made, nil
	}
	head, bodies, err := transcoded(file, path, question)
	if err != nil {
		return nil, err
	}
	if head != nil {
		if made, err = json.Marshal(head); err != nil {
			return nil, err
		}
		made = append(made, '\n')
	}
	made = append(made, bytes.Join(bodies, nil)...)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.made[key] = made
	return made, nil
}

// transcoded does a job with the function's code.
func transcoded(file, path string, question []byte) (head any, bodies [][]byte, err error) {
	body := make([][]byte, 1)
	switch path {
	case "/probe":
		var q media.Probe
		if err = json.Unmarshal(question, &q); err == nil {
			head, err = transcode.Probe(file, q.Most)
		}
		return head, nil, err
	case "/chunk":
		var q media.Chunk
		if err = json.Unmarshal(question, &q); err == nil {
			head, body, err = transcode.Chunk(file, q)
		}
	case "/sound":
		var q media.Sound
		if err = json.Unmarshal(question, &q); err == nil {
			head, body, err = transcode.Sound(file, q)
		}
	case "/thumbs":
		var q media.Thumbs
		if err = json.Unmarshal(question, &q); err == nil {
			head, body, err = transcode.Thumbs(file, q)
		}
	case "/text":
		var q media.Text
		if err = json.Unmarshal(question, &q); err == nil {
			body[0], err = transcode.Text(file, q)
		}
	}
	return head, body, err
}

// Invoke implements the engine's Invoke with the transcoder's code.
func (tr *transcoder) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	if _, err := tr.Function(name); err != nil {
		return nil, err
	}
	answer := func(status int, b []byte) (*engine.Response, error) {
		return &engine.Response{ID: "i", Status: status, Size: int64(len(b)), Body: io.NopCloser(bytes.NewReader(b))}, nil
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	if source, ok := strings.CutPrefix(r.Path, "/sources/"); ok {
		path := filepath.Join(tr.sources, source)
		if r.Method != http.MethodGet {
			if err := tr.before(ctx, r.Method); err != nil {
				return nil, err
			}
		}
		switch {
		case source == "":
			return answer(http.StatusOK, []byte("[]"))
		case r.Method == http.MethodGet:
			if _, err := os.Stat(path); err != nil {
				return answer(http.StatusNotFound, nil)
			}
		case r.Method == http.MethodPut:
			if err := os.WriteFile(path, body, 0o600); err != nil { // a test's source has one piece
				return nil, err
			}
		case r.Method == http.MethodDelete:
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
		return answer(http.StatusNoContent, nil)
	}
	job := r.Path
	if job == "/chunk" {
		var q media.Chunk
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		job += " " + strconv.Itoa(q.From*q.Grid.Rate.Den/q.Grid.Rate.Num)
	}
	if err := tr.before(ctx, job); err != nil {
		return nil, err
	}
	if lie := tr.lies[r.Path]; lie != nil {
		b, err := json.Marshal(lie)
		if err != nil {
			return nil, err
		}
		return answer(http.StatusOK, append(b, '\n'))
	}
	made, err := tr.job(r.Path, body)
	if errors.Is(err, fs.ErrNotExist) {
		return answer(http.StatusNotFound, []byte(err.Error()))
	}
	if err != nil {
		return answer(http.StatusUnprocessableEntity, []byte(err.Error()))
	}
	return answer(http.StatusOK, made)
}

// before counts a job, and calls meet.
func (tr *transcoder) before(ctx context.Context, job string) error {
	tr.mu.Lock()
	tr.asked[job]++
	meet := tr.meet
	tr.mu.Unlock()
	if meet == nil {
		return nil
	}
	return meet(ctx, job)
}

// times returns how often a job was done.
func (tr *transcoder) times(job string) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.asked[job]
}

// meets sets the function to call before each job.
func (tr *transcoder) meets(meet func(ctx context.Context, job string) error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.meet = meet
}

// world is a service with a transcoder, and the service's state.
type world struct {
	*Service
	state  string
	engine *transcoder
	client *client.Client
	cfg    Config
}

// newWorld starts a service with its state in a directory.
func newWorld(t *testing.T, state string, cfg Config) *world {
	t.Helper()
	tr := &transcoder{Engine: servertest.New(), sources: t.TempDir(), asked: map[string]int{}, made: map[string][]byte{}}
	socket := filepath.Join(t.TempDir(), "sock")
	l, err := server.Listen(socket, "")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s := &http.Server{Handler: server.New(server.Config{Engine: tr, Log: slog.New(slog.DiscardHandler), Version: api.Version{Version: "v1"}})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	w := &world{state: state, engine: tr, client: client.New(socket)}
	t.Cleanup(w.client.Close)
	cfg.Engine, cfg.Log, cfg.Template, cfg.Preset = w.client, log, Template, "ultrafast"
	if cfg.Slots == 0 {
		cfg.Slots = 2
	}
	w.cfg = cfg
	w.open(t)
	t.Cleanup(func() { w.close(t) })
	return w
}

func (w *world) open(t *testing.T) {
	t.Helper()
	library, damaged, err := asset.Open(w.state)
	if err != nil || len(damaged) > 0 {
		t.Fatal(err, damaged)
	}
	w.cfg.Library = library
	w.Service = New(w.cfg)
}

func (w *world) close(t *testing.T) {
	t.Helper()
	w.Close()
	if err := w.library.Close(); err != nil {
		t.Error(err)
	}
}

// add uploads a file and returns the asset's id.
func (w *world) add(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, err := w.Add(t.Context(), Order{Name: filepath.Base(path)}, f)
	if err != nil {
		t.Fatal(err)
	}
	return a.ID
}

// tus serves uploads. ask sends a request; header holds names and values in turn.
func (w *world) tus(t *testing.T) (ask func(method, path string, body []byte, header ...string) *httptest.ResponseRecorder) {
	t.Helper()
	handler, err := w.uploads(t.TempDir(), w.cfg.Log)
	if err != nil {
		t.Fatal(err)
	}
	handler = http.StripPrefix("/v1/uploads/", handler)
	return func(method, path string, body []byte, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
		r.Header.Set("Tus-Resumable", "1.0.0")
		r.Header.Set("Content-Type", "application/offset+octet-stream")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		a := httptest.NewRecorder()
		handler.ServeHTTP(a, r)
		return a
	}
}

// until waits for a condition of an asset; a removed asset is nil.
func (w *world) until(t *testing.T, id string, so func(*asset.Asset) bool) *asset.Asset {
	t.Helper()
	for {
		changed := w.library.Changed()
		if a := w.library.Get(id); so(a) {
			return a
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("it is %+v", w.library.Get(id))
		}
	}
}

// done waits until the work on an asset has ended.
func (w *world) done(t *testing.T, id string) *asset.Asset {
	t.Helper()
	return w.until(t, id, func(a *asset.Asset) bool { return a.State != asset.Working })
}

// clip makes a video with the ffmpeg program.
func clip(t *testing.T, name, args string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("ffmpeg", append(strings.Fields("-v error -nostdin "+args), path)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// silence is the input of an ffmpeg for sound without a tone: FFmpeg's AAC encoder takes five times
// as long for a tone, and the tests of this package listen to nothing.
const silence = "-f lavfi -i anullsrc=sample_rate=44100:channel_layout=mono:duration="

// film makes a video with pictures of a size, with silent sound, for some seconds.
func film(t *testing.T, name, size, seconds string) string {
	t.Helper()
	return clip(t, name, "-f lavfi -i testsrc2=size="+size+":rate=10:duration="+seconds+" "+silence+seconds+" -c:v libx264 -preset ultrafast -g 20 -c:a aac")
}
