package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/store"
)

// TestContainerObservers: a client learns a container's state from a change, from the end of the
// log or from the end of the streams. By then the state is stored.
func TestContainerObservers(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	last := r.Changes().Generation()
	states := []store.ChangeAction{store.ActionCreate, store.ActionStart, store.ActionExit, store.ActionDelete}
	next := func(want store.ChangeAction) {
		t.Helper()
		for {
			grown := r.Changes().After(last)
			news, _ := r.Changes().Since(last)
			for _, c := range news {
				if last = c.Generation; c.Kind == store.ChangeSandbox && slices.Contains(states, c.Action) {
					if c.Action != want || c.Labels["a"] != "b" {
						t.Errorf("change %+v, want %s with its labels", c, want)
					}
					return
				}
			}
			select {
			case <-grown:
			case <-t.Context().Done():
				t.Errorf("no change %s: %v", want, t.Context().Err())
				return
			}
		}
	}
	state := func(what string, want live.State) {
		t.Helper()
		if c, err := r.Container("seen"); err != nil || c.State != want {
			t.Errorf("after %s: %+v, %v, want it %s", what, c, err, want)
		}
	}
	create := func() {
		t.Helper()
		if _, err := r.CreateContainer(t.Context(), container.Config{Name: "seen", Image: "ordinary", Cmd: prog("trap"), Labels: map[string]string{"a": "b"}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []string{"change", "log", "streams"} {
		heard := make(chan struct{})
		go func() {
			defer close(heard)
			next(store.ActionCreate)
			state("the change of its creation", live.StateCreated)
			next(store.ActionStart)
			state("the change of its start", live.StateRunning)
			if err := r.StopContainer(t.Context(), "seen", live.StopOptions{Grace: time.Minute}); err != nil && !errors.Is(err, live.ErrContainerStopped) {
				t.Error(err)
			}
		}()
		create()
		a, err := r.Attach("seen", container.AttachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.StartContainer(t.Context(), "seen"); err != nil {
			t.Fatal(err)
		}
		switch end {
		case "log":
			err = r.ContainerLogs(t.Context(), "seen", live.LogOptions{Tail: -1, Follow: true}, func(live.LogLine) error { return nil })
			a.Close()
		case "streams":
			err = a.Serve(t.Context())
		case "change":
			a.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		<-heard
		next(store.ActionExit)
		state("the end of its "+end, live.StateExited)
		if err := r.RemoveContainer("seen", false); err != nil {
			t.Errorf("remove after the end of its %s: %v", end, err)
		}
		next(store.ActionDelete)
	}
}

// TestContainerRestarts: a restart is one operation: the stop does not trigger the automatic
// removal, and the container runs again on its written files.
func TestContainerRestarts(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	c := r.create(container.Config{AutoRemove: true})
	removed, err := r.AwaitContainer(c.ID, container.WaitRemoved)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StartContainer(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := r.RestartContainer(t.Context(), c.ID, live.StopOptions{}); err != nil {
			t.Fatal(err)
		}
		if now, err := r.Container(c.ID); err != nil || now.State != live.StateRunning {
			t.Fatalf("after a restart: %+v, %v", now, err)
		}
	}
	if err := r.StopContainer(context.WithoutCancel(t.Context()), c.ID, live.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := removed(t.Context()); err != nil {
		t.Fatal(err)
	}
}
