package trigger

import (
	"context"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// followEvery is how often a set checks whether functions have changed.
const followEvery = time.Second

// wire is a deployed trigger for messages or files, as configured now.
type wire struct {
	function, trigger, tenant string
	subject, stream, queue    string // of messages
	path                      string // of files
}

// name identifies the trigger, whatever its configuration.
func (w *wire) name() string { return w.function + "\x00" + w.trigger }

// id identifies a wire with its configuration: a changed trigger has another id.
func (w *wire) id() string {
	id := w.name() + "\x00" + w.tenant
	if w.subject != "" {
		return id + "\x00" + w.subject + "\x00" + w.stream + "\x00" + w.queue
	}
	return id + "\x00" + w.path
}

// running is a wire whose goroutine runs.
type running struct {
	wire *wire
	stop context.CancelFunc
	done chan struct{}
}

// follow runs the triggers that pick returns a wire for, until ctx ends. It calls run while a
// trigger is deployed, and gone after its removal.
func (s *Set) follow(ctx context.Context, pick func(*engine.Function, *template.Trigger) *wire, run, gone func(context.Context, *wire)) {
	all := map[string]*running{}
	defer func() {
		for _, r := range all {
			r.stop()
			<-r.done
		}
	}()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for changed := s.changes(); ; {
		if changed() {
			s.adapt(ctx, all, pick, run, gone)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// deployed returns the wires of the deployed triggers by id, and the names of the triggers, whether
// changed or not.
func (s *Set) deployed(pick func(*engine.Function, *template.Trigger) *wire) (wires map[string]*wire, names map[string]bool) {
	wires, names = map[string]*wire{}, map[string]bool{}
	for _, f := range s.cfg.Engine.Functions() {
		for i := range f.Config.Triggers {
			if w := pick(f, &f.Config.Triggers[i]); w != nil {
				wires[w.id()] = w
				names[w.name()] = true
			}
		}
	}
	return wires, names
}

// adapt stops the wires that are no longer deployed, and starts new ones.
func (s *Set) adapt(ctx context.Context, all map[string]*running, pick func(*engine.Function, *template.Trigger) *wire, run, gone func(context.Context, *wire)) {
	wanted, names := s.deployed(pick)
	for id, r := range all {
		if wanted[id] != nil {
			continue
		}
		r.stop()
		<-r.done
		delete(all, id)
		if !names[r.wire.name()] || r.wire.stream != "" {
			gone(ctx, r.wire)
		}
	}
	for id, w := range wanted {
		if all[id] != nil {
			continue
		}
		live, stop := context.WithCancel(ctx)
		r := &running{wire: w, stop: stop, done: make(chan struct{})}
		all[id] = r
		go func() {
			defer close(r.done)
			run(live, w)
		}()
	}
}

// insist calls try every followEvery until ctx ends, and calls failed with each error that differs
// from the error before.
func insist(ctx context.Context, try func() error, failed func(error)) {
	last := ""
	for ctx.Err() == nil {
		if err := try(); err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(followEvery):
		}
	}
}
