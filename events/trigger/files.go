package trigger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/events/inbox"
	"github.com/fre-engine/fre/template"
)

// dropped is the body of a file's event.
type dropped struct {
	Path     string    `json:"path"`                  // in the sandbox; invalid UTF-8 is replaced
	Bytes    string    `json:"path_base64,omitempty"` // only for invalid UTF-8: the unchanged path
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
}

// instancesEach is how many triggers of a tenant may have an inotify instance.
const instancesEach = 8

// Files makes events of files that appear in tenants' /work, until ctx ends. Records of the files
// already seen are kept below dir. work returns the host directory of a tenant's /work.
func (s *Set) Files(ctx context.Context, dir string, work func(tenant string) (string, error)) {
	record := func(w *wire) string {
		sum := sha256.Sum256([]byte(w.function + "\x00" + w.trigger))
		return filepath.Join(dir, hex.EncodeToString(sum[:16]))
	}
	pick := func(f *engine.Function, t *template.Trigger) *wire {
		if t.Files == nil {
			return nil
		}
		return &wire{function: f.Name, trigger: t.Name, tenant: f.Config.Tenant, path: t.Files.Path}
	}
	instances := inbox.NewInstances(0, instancesEach)
	run := func(ctx context.Context, w *wire) {
		try := func() error {
			below, err := work(w.tenant)
			if err != nil {
				return err
			}
			cfg := inbox.Config{Dir: below, Pattern: w.path, Record: record(w), Log: s.cfg.Log.With("function", w.function, "trigger", w.trigger), Instances: instances, Owner: w.tenant}
			return inbox.Watch(ctx, cfg, func(ctx context.Context, f *inbox.File) error { return s.file(ctx, w, f) })
		}
		insist(ctx, try, func(err error) {
			s.cfg.Log.WarnContext(ctx, "files in /work make no events", "function", w.function, "trigger", w.trigger, "error", err)
		})
	}
	gone := func(ctx context.Context, w *wire) {
		if err := os.Remove(record(w)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.WarnContext(ctx, "record of files not removed", "function", w.function, "trigger", w.trigger, "error", err)
		}
	}
	s.follow(ctx, pick, run, gone)
}

// file makes an event of a file: a CloudEvent in binary mode. It also returns nil if the file can
// never become an event; the log says why.
func (s *Set) file(ctx context.Context, w *wire, f *inbox.File) error {
	fn, err := s.cfg.Engine.Function(w.function)
	if err != nil {
		return err
	}
	d := dropped{Path: "/work/" + f.Path, Size: f.Size, Modified: f.Modified}
	if !utf8.ValidString(f.Path) {
		d.Bytes = base64.StdEncoding.EncodeToString([]byte(d.Path))
	}
	body, err := json.Marshal(&d)
	if err != nil {
		return err
	}
	r := &engine.Request{
		Method: "POST", Path: "/", Body: bytes.NewReader(body), Length: int64(len(body)),
		Headers: [][2]string{
			{"Content-Type", "application/json"},
			{"Ce-Specversion", "1.0"},
			{"Ce-Type", "dev.fre.file.complete"},
			{"Ce-Source", "/work"},
			{"Ce-Id", f.Key},
			{"Ce-Time", f.Modified.Format(time.RFC3339Nano)},
			{"Ce-Subject", (&url.URL{Path: d.Path}).EscapedPath()},
		},
	}
	_, err = s.takeOn(ctx, fn, r, events.Options{Key: "files\x00" + w.trigger + "\x00" + f.Key, Source: "files/" + w.trigger, Repeated: true})
	if events.Final(err) {
		s.cfg.Log.WarnContext(ctx, "file is no event", "function", w.function, "trigger", w.trigger, "path", d.Path, "error", err)
		return nil
	}
	return err
}
