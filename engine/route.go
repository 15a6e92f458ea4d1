package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/fre-engine/fre/image"
)

// route returns the revision to handle an event: by the traffic of NAME, or the revision in
// NAME@REVISION. told says that the caller is to learn the revision.
func (e *Engine) route(name string, r *Request) (f *function, told bool, err error) {
	if d := (*e.functions.Load())[name]; d != nil && d.only != nil {
		return d.only, false, nil
	}
	qualified, revision, asked := strings.Cut(name, "@")
	d, err := e.find(qualified)
	switch {
	case err != nil:
		return nil, false, err
	case !asked && d.only != nil:
		return d.only, false, nil
	case !asked:
		return d.pick(r), true, nil
	}
	number, err := d.spec.resolve(d.name, revision)
	if err != nil {
		return nil, false, err
	}
	if f := d.live[number]; f != nil {
		return f, true, nil
	}
	f, err = e.revive(d.name, number)
	return f, true, err
}

// revive makes a revision without traffic live, for an event that names the revision. The
// revision then rests.
func (e *Engine) revive(name string, number int) (*function, error) {
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	d, err := e.find(name)
	if err != nil {
		return nil, err
	}
	r := d.spec.keptRevision(number)
	if r == nil {
		return nil, &UnknownError{Function: name, Revision: fmt.Sprint(number)}
	}
	if f := d.live[number]; f != nil {
		return f, nil
	}
	f, err := e.newRevision(d.name, d.spec, r)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("revision %d of %s: %w: deploy again", number, name, ErrImageGone)
		}
		return nil, err
	}
	f.logs = d.logs
	e.prepare(f)
	f.measure()
	e.rest(f)
	return f, e.withLiveLocked(d, number, f)
}

// Front returns the policy of a function, or of one revision for NAME@REVISION; false if
// unknown. Front takes no lock. If events are split, the policy is the main revision's, with the
// strictest access of all revisions that may get the events.
func (e *Engine) Front(name string) (Front, bool) {
	name, revision, asked := strings.Cut(name, "@")
	d, err := e.find(name)
	if err != nil {
		return Front{}, false
	}
	if !asked {
		return d.front, true
	}
	number, err := d.spec.resolve(d.name, revision)
	if err != nil {
		return Front{}, false
	}
	if f := d.live[number]; f != nil {
		return f.front(), true
	}
	img, err := e.cfg.Store.Image(string(d.spec.keptRevision(number).Image))
	if err != nil {
		return Front{}, false
	}
	cfg, err := image.ConfigOf(img)
	if err != nil {
		return Front{}, false
	}
	return Front{Tenant: d.main.config.Tenant, Access: cfg.Access, CORS: cfg.CORS}, true
}

// Room returns how many more events the named function could take now: the free capacity of
// running instances and of instances that could start, limited by the engine's free slots, less
// the events that wait for either. Room is 0 for an unknown function and for an engine that is
// stopping. A holder of events that can also wait elsewhere asks Room first. The answer is no
// reservation: another event may come first.
func (e *Engine) Room(name string) int {
	f, err := e.lookup(name)
	if err != nil || e.Stopping() {
		return 0
	}
	f.mu.Lock()
	n := f.config.Instances.Max*f.config.Instances.Concurrency - f.busy - f.waiters.Len()
	f.mu.Unlock()
	return max(0, min(n, e.slots.room(&f.slots)))
}
