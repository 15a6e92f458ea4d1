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

// id identifies a wire with its configuration: a changed trigger has another id.
func (w *wire) id() string {
	id := w.function + "\x00" + w.trigger + "\x00" + w.tenant
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
	var seen uint64
	for first := true; ; first = false {
		var changed uint64
		if s.cfg.Changed != nil {
			changed = s.cfg.Changed()
		}
		if first || s.cfg.Changed == nil || changed != seen {
			seen = changed
			s.adapt(ctx, all, pick, run, gone)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// adapt stops the wires that are no longer deployed, and starts new ones.
func (s *Set) adapt(ctx context.Context, all map[string]*running, pick func(*engine.Function, *template.Trigger) *wire, run, gone func(context.Context, *wire)) {
	wanted := map[string]*wire{}
	names := map[string]bool{} // of deployed triggers, whether changed or not
	for _, f := range s.cfg.Engine.Functions() {
		for i := range f.Config.Triggers {
			if w := pick(f, &f.Config.Triggers[i]); w != nil {
				wanted[w.id()] = w
				names[w.function+"\x00"+w.trigger] = true
			}
		}
	}
	for id, r := range all {
		if wanted[id] != nil {
			continue
		}
		r.stop()
		<-r.done
		delete(all, id)
		if !names[r.wire.function+"\x00"+r.wire.trigger] || r.wire.stream != "" {
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
