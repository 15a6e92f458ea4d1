package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fre-engine/fre/store"
)

// TestEvents: what a function goes through is told in order, to one who asks
// afterwards and to one who has waited, and who is told of it finds it listed.
func TestEvents(t *testing.T) {
	r := open(t)
	since := r.Changes().Generation()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan store.Change, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- r.Events(ctx, EventOptions{Since: since, Follow: true}, func(c store.Change) error {
			listed := 0
			switch c.Kind {
			case store.ChangeImage:
				listed = len(r.store.Images())
			case store.ChangeFunction:
				listed = 1 - len(r.Functions())
				if c.Action == store.ActionDeploy {
					listed = len(r.Functions())
				}
			case store.ChangeSandbox:
				listed = len(r.Sandboxes(true))
			}
			if listed != 1 {
				t.Errorf("told of %s %s when the list does not show it", c.Kind, c.Action)
			}
			told <- c
			return nil
		})
	}()
	var got []store.Change
	next := func(n int) {
		t.Helper()
		for range n {
			select {
			case c := <-told:
				got = append(got, c)
			case err := <-ended:
				t.Fatalf("events ended: %v after %+v", err, got)
			}
		}
	}
	img := r.image("f", nil)
	next(2)
	f, err := r.Deploy(ctx, "f", img, DeployOptions{})
	if err != nil {
		t.Fatal(err)
	}
	next(1)
	id := r.mustCall("f", "/", "one", "one").Instance
	if err := r.Kill(id); err != nil {
		t.Fatal(err)
	}
	next(2)
	if err := r.RemoveFunction(ctx, "f"); err != nil {
		t.Fatal(err)
	}
	next(1)
	sandboxAttributes := map[string]string{"function": "f", "image": "f:1", "tenant": "default"}
	killed := map[string]string{"function": "f", "image": "f:1", "tenant": "default", "exit_code": "-1", "signal": "9"}
	functionAttributes := map[string]string{"image": "f:1", "digest": string(f.Image), "tenant": "default"}
	want := []store.Change{
		{Kind: store.ChangeImage, Action: store.ActionCreate, ID: string(img.Digest)},
		{Kind: store.ChangeImage, Action: store.ActionTag, ID: string(img.Digest), Name: "f:1"},
		{Kind: store.ChangeFunction, Action: store.ActionDeploy, ID: "f", Name: "f", Attributes: functionAttributes},
		{Kind: store.ChangeSandbox, Action: store.ActionStart, ID: id, Attributes: sandboxAttributes},
		{Kind: store.ChangeSandbox, Action: store.ActionExit, ID: id, Attributes: killed},
		{Kind: store.ChangeFunction, Action: store.ActionRemove, ID: "f", Name: "f", Attributes: functionAttributes},
	}
	ignore := cmpopts.IgnoreFields(store.Change{}, "Generation", "Time")
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if later, ok := r.Changes().Since(since); !ok || !cmp.Equal(later, got) {
		t.Errorf("asked afterwards: %t, %s", ok, cmp.Diff(got, later))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("stream that was ended: %v", err)
	}

	if err := r.Events(t.Context(), EventOptions{Since: since - 1}, nil); !errors.Is(err, ErrChangesLost) {
		t.Errorf("events since before the start: %v, want ErrChangesLost", err)
	}
	enough := errors.New("enough")
	if err := r.Events(t.Context(), EventOptions{Since: since}, func(store.Change) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("emit fails: %v", err)
	}
	if err := r.Events(t.Context(), EventOptions{Since: r.Changes().Generation()}, nil); err != nil {
		t.Errorf("nothing has happened since: %v", err)
	}
	go func() {
		ended <- r.Events(t.Context(), EventOptions{Since: r.Changes().Generation(), Follow: true}, nil)
	}()
	r.stop()
	if err := <-ended; err != nil {
		t.Errorf("the engine stops: %v", err)
	}
}
