package trigger

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// A file in /work makes one event, also over restarts. A refused file is offered again, unless the
// refusal is final.
func TestFiles(t *testing.T) {
	w, work, records := &world{}, t.TempDir(), t.TempDir()
	set := newSet(t, w, time.Now(), template.Trigger{Name: "drop", Files: &template.Files{Path: "inbox/*"}})
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			set.Files(ctx, records, func(tenant string) (string, error) {
				if tenant != "default" {
					return "", errors.New("another tenant's")
				}
				return work, nil
			})
		}()
		stop = func() {
			cancel()
			<-done
		}
		t.Cleanup(stop)
		return stop
	}
	if err := os.Mkdir(filepath.Join(work, "inbox"), 0o755); err != nil {
		t.Fatal(err)
	}
	drop := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(work, "inbox", name), []byte("12345"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	events1 := func(n int) func() error {
		return func() error {
			if got := len(w.bodies()); got != n {
				return errors.New("not as many events")
			}
			return nil
		}
	}
	stop := run()
	drop("a b\n.csv")
	until(t, events1(1))
	got := w.published[0]
	var body dropped
	if err := json.Unmarshal([]byte(got.Body), &body); err != nil || body.Path != "/work/inbox/a b\n.csv" || body.Size != 5 || body.Bytes != "" || time.Since(body.Modified) > time.Hour {
		t.Errorf("event %s, %v", got.Body, err)
	}
	for _, f := range [][2]string{{"Ce-Type", "dev.fre.file.complete"}, {"Ce-Subject", "/work/inbox/a%20b%0A.csv"}, {"Ce-Specversion", "1.0"}} {
		if !slices.Contains(got.Header, f) {
			t.Errorf("header %q lacks %q", got.Header, f)
		}
	}
	if got.Source != "files/drop" || got.Function != "f" {
		t.Errorf("event %+v", got)
	}
	w.fail(&events.RefusedError{Err: events.ErrFull, After: time.Second})
	drop("waits")
	until(t, w.hasRefused(1))
	stop()
	drop("meanwhile")
	w.fail(nil)
	stop = run()
	until(t, events1(3))
	drop("\xff")
	until(t, events1(4))
	if err := json.Unmarshal([]byte(w.published[3].Body), &body); err != nil {
		t.Fatal(err)
	}
	if path, err := base64.StdEncoding.DecodeString(body.Bytes); err != nil || string(path) != "/work/inbox/\xff" || !strings.Contains(body.Path, "�") {
		t.Errorf("event %s, %v", w.published[3].Body, err)
	}
	stop()
	// The record of the files goes with the function.
	left := func(n int) func() error {
		return func() error {
			all, err := os.ReadDir(records)
			if err == nil && len(all) != n {
				err = errors.New("not as many records")
			}
			return err
		}
	}
	until(t, left(1))
	run()
	drop("last")
	until(t, events1(5))
	w.mu.Lock()
	w.functions = map[string]image.Config{}
	w.mu.Unlock()
	until(t, left(0))
}
