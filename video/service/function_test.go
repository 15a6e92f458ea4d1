package service

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

// deployments is an engine that deploys every function, except with a lock whose packages are gone.
type deployments struct {
	locks []string // received locks; "" for a deployment without a lock
	gone  string   // a lock whose packages are gone
	gives string   // the lock in its answer
}

func (d *deployments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/functions" { // the client asks about the template first
		w.WriteHeader(http.StatusNotFound)
		return
	}
	lock := ""
	for files := tar.NewReader(r.Body); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(err)
		}
		if h.Name == api.LockFile {
			b, err := io.ReadAll(files)
			if err != nil {
				panic(err)
			}
			lock = string(b)
		}
	}
	d.locks = append(d.locks, lock)
	w.WriteHeader(http.StatusOK)
	line := api.BuildLine{Image: &api.Image{}, Lock: json.RawMessage(d.gives)}
	if lock != "" && lock == d.gone {
		line = api.BuildLine{Error: &api.Error{Code: api.CodePackage, Message: "libavcodec59 is gone"}}
	}
	_ = json.NewEncoder(w).Encode(line)
}

// TestLock: the service keeps the lock of the transcoder's packages, and sends the lock with the
// next deployment until a locked package cannot be fetched any more.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	engine := &deployments{gives: `{"version":1}`}
	listener, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(engine)
	server.Listener = listener
	server.Start()
	defer server.Close()
	c := client.New(filepath.Join(dir, "sock"))
	defer c.Close()
	lock := filepath.Join(dir, "state.lock")
	deploy := func() {
		t.Helper()
		files := func(dir string) error { return os.WriteFile(filepath.Join(dir, "fret.yaml"), nil, 0o600) }
		f := &function{engine: c, name: "x", files: files, lock: lock, log: slog.New(slog.DiscardHandler)}
		if err := f.deploy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	deploy()
	deploy()
	first := "{\n  \"version\": 1\n}\n"
	if want := []string{"", first}; !slices.Equal(engine.locks, want) {
		t.Errorf("%q, want %q", engine.locks, want)
	}
	engine.locks, engine.gone, engine.gives = nil, first, `{"version":2}`
	deploy()
	deploy()
	if want := []string{first, "", "{\n  \"version\": 2\n}\n"}; !slices.Equal(engine.locks, want) {
		t.Errorf("%q, want %q", engine.locks, want)
	}
	if left, err := filepath.Glob(lock + "*"); err != nil || len(left) != 1 {
		t.Errorf("%q, %v", left, err)
	}
}

// TestLost: the service replaces a chunk with black pictures if the function reports an error, but
// not if the engine is away or the disk fails.
func TestLost(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&refusedError{"too large"}, "too large"},
		{fmt.Errorf("again: %w", &brokenError{"it has crashed"}), "it has crashed"},
		{&awayError{errors.New("overloaded")}, ""},
		{&os.PathError{Op: "write", Path: "x", Err: os.ErrPermission}, ""},
		{nil, ""},
	} {
		if got := lost(tt.err); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
