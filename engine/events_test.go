package engine

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/server/syscount"
	"github.com/fre-engine/fre/store"
)

// TestEvents: the engine reports a function's changes in order, to a client that asks later and to
// a client that waits. The lists show each reported change.
func TestEvents(t *testing.T) {
	r := open(t)
	since := r.Changes().Generation()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan store.Change, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- r.Events(ctx, live.EventOptions{Since: since, Follow: true}, func(c store.Change) error {
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
			case store.ChangeCache:
				t.Errorf("told of %s of the cache", c.Action)
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
	next(3)
	if err := r.RemoveFunction(ctx, "f"); err != nil {
		t.Fatal(err)
	}
	next(1)
	sandboxAttributes := map[string]string{"function": "f", "image": "f:1", "tenant": "default"}
	kill := map[string]string{"function": "f", "image": "f:1", "tenant": "default", "signal": "9"}
	killed := map[string]string{"function": "f", "image": "f:1", "tenant": "default", "exit_code": "-1", "signal": "9"}
	functionAttributes := map[string]string{"image": "f:1", "digest": string(f.Image), "tenant": "default", "revision": "1"}
	want := []store.Change{
		{Kind: store.ChangeImage, Action: store.ActionCreate, ID: string(img.Digest)},
		{Kind: store.ChangeImage, Action: store.ActionTag, ID: string(img.Digest), Name: "f:1"},
		{Kind: store.ChangeFunction, Action: store.ActionDeploy, ID: "f", Name: "f", Attributes: functionAttributes},
		{Kind: store.ChangeSandbox, Action: store.ActionStart, ID: id, Attributes: sandboxAttributes},
		{Kind: store.ChangeSandbox, Action: store.ActionKill, ID: id, Attributes: kill},
		{Kind: store.ChangeSandbox, Action: store.ActionExit, ID: id, Attributes: killed},
		{Kind: store.ChangeFunction, Action: store.ActionRemove, ID: "f", Name: "f", Attributes: functionAttributes},
	}
	ignore := cmpopts.IgnoreFields(store.Change{}, "Generation", "Time", "Config")
	seconds := cmpopts.IgnoreMapEntries(func(key, _ string) bool { return key == "seconds" })
	if diff := cmp.Diff(want, got, ignore, seconds); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if later, ok := r.Changes().Since(since); !ok || !cmp.Equal(later, got) {
		t.Errorf("asked afterwards: %t, %s", ok, cmp.Diff(got, later))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("stream that was ended: %v", err)
	}

	if err := r.Events(t.Context(), live.EventOptions{Since: since - 1}, nil); !errors.Is(err, live.ErrChangesLost) {
		t.Errorf("events since before the start: %v, want ErrChangesLost", err)
	}
	enough := errors.New("enough")
	if err := r.Events(t.Context(), live.EventOptions{Since: since}, func(store.Change) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("emit fails: %v", err)
	}
	if err := r.Events(t.Context(), live.EventOptions{Since: r.Changes().Generation()}, nil); err != nil {
		t.Errorf("nothing has happened since: %v", err)
	}
	go func() {
		ended <- r.Events(t.Context(), live.EventOptions{Since: r.Changes().Generation(), Follow: true}, nil)
	}()
	r.stop()
	if err := <-ended; err != nil {
		t.Errorf("the engine stops: %v", err)
	}
}

// TestSandboxList: equal pointers mean equal content. The newest sandbox comes first, independent
// of the clock, and the list keeps a limited number of ended sandboxes.
func TestSandboxList(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.deploy("g", nil)
	first := r.mustCall("f", "/", "one", "one").Instance
	r.idle("f")
	second := r.mustCall("g", "/", "two", "two").Instance
	r.idle("g")
	list := r.Sandboxes(false)
	if len(list) != 2 || list[0].ID != second || list[1].ID != first || list[0].PID == 0 || list[0].State != live.StateIdle {
		t.Fatalf("got %+v, want %s and %s", list, second, first)
	}
	if again := r.Sandboxes(false); !slices.Equal(again, list) {
		t.Errorf("other pointers for the same: %+v, %+v", again, list)
	}
	if size, err := r.Size(list[0]); err != nil || size.Bytes < 0 || size.Inodes < 0 {
		t.Errorf("size %+v, %v", size, err)
	}
	held := make(chan struct{})
	go func() {
		defer close(held)
		_, _, _ = r.call(t.Context(), "f", "/hang", "")
	}()
	eventually(t, "the event to be handled", func() bool { return r.Sandboxes(false)[1].State == live.StateBusy })
	if busy := r.Sandboxes(false); busy[0] != list[0] || busy[1] == list[1] || busy[1].PID != list[1].PID || list[1].State != live.StateIdle {
		t.Errorf("one is busy: %+v after %+v", busy, list)
	}
	if err := r.Kill(first); err != nil {
		t.Fatal(err)
	}
	<-held
	ended := r.Sandboxes(true)
	if len(ended) != 2 || ended[0] != list[0] || ended[1].ID != first || ended[1].State != live.StateExited || ended[1].Exit.Signal != 9 || ended[1].PID != 0 || ended[1].Ended.IsZero() {
		t.Errorf("one was killed: %+v", ended)
	}
	if _, err := r.Size(list[1]); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("size of one that was killed: %v", err)
	}
	if live := r.Sandboxes(false); len(live) != 1 || live[0] != list[0] {
		t.Errorf("live after one was killed: %+v", live)
	}
}

// TestListSystemCalls: listing sandboxes makes no system calls, and listing their sizes makes one
// per sandbox.
func TestListSystemCalls(t *testing.T) {
	r := open(t)
	const boxes, rounds = 4, 1000 // pools that fill in the background make fewer calls than rounds
	r.deploy("f", func(c *image.Config) { c.Instances.Min = boxes })
	eventually(t, "the minimum to be warm", func() bool {
		list := r.Sandboxes(false)
		return len(list) == boxes && !slices.ContainsFunc(list, func(s *live.Sandbox) bool { return s.State != live.StateIdle })
	})
	count := func(what func()) map[string]int64 {
		t.Helper()
		c, err := syscount.Start()
		if err != nil {
			t.Fatal(err)
		}
		for range rounds {
			what()
		}
		counts, err := c.Stop()
		if err != nil {
			t.Fatal(err)
		}
		// The Go runtime and the count itself make a few calls. Calls by the lists would number at
		// least one per sandbox and round.
		out := map[string]int64{}
		for _, c := range counts {
			if c.Calls >= rounds {
				out[c.Name] = c.Calls
			}
		}
		for _, name := range []string{"futex", "clock_gettime", "nanosleep", "epoll_pwait", "sched_yield", "tgkill", "getpid", "rt_sigreturn", "madvise"} {
			delete(out, name)
		}
		return out
	}
	list := func() { r.Sandboxes(true) }
	sizes := func() {
		for _, s := range r.Sandboxes(true) {
			if _, err := r.Size(s); err != nil {
				t.Error(err)
			}
		}
	}
	if got := count(list); len(got) > 0 {
		t.Errorf("%d lists of %d sandboxes make system calls: %v", rounds, boxes, got)
	}
	if got := count(sizes); !maps.Equal(got, map[string]int64{"fstatfs": boxes * rounds}) {
		t.Errorf("%d lists of %d sandboxes with sizes make system calls: %v, want one fstatfs each", rounds, boxes, got)
	}
}

// TestFunctionList: equal pointers mean equal content.
func TestFunctionList(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.deploy("g", nil)
	r.mustCall("f", "/", "one", "one")
	r.idle("f")
	list := r.Functions()
	if again := r.Functions(); len(list) != 2 || !slices.Equal(again, list) {
		t.Errorf("other pointers for the same: %+v, %+v", again, list)
	}
	r.mustCall("f", "/", "two", "two")
	r.idle("f")
	after := r.Functions()
	if after[0] == list[0] || after[0].Invocations != list[0].Invocations+1 || after[1] != list[1] {
		t.Errorf("after an event: %+v, before: %+v", after, list)
	}
}
