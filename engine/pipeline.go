package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/image"
)

// StepError is why a pipeline has no answer where one of its steps ran already, or is not
// there: whoever would send such an event elsewhere must not take it for one that was
// refused. Code is as of [ErrorCode], "step_missing" for a step that is not there.
type StepError struct {
	Code string
	Err  error
}

func (e *StepError) Error() string { return e.Err.Error() }

// Unwrap tells only what a step did itself.
func (e *StepError) Unwrap() error {
	switch e.Code {
	case "function_error", "function_crashed", "timeout":
		return e.Err
	}
	return nil
}

// isPipeline says whether the function is nothing but others, one behind the other.
func (f *function) isPipeline() bool { return f.config.Protocol == image.ProtocolPipeline }

// pipeline has the function's steps handle the event. It takes an event's place in the engine,
// which its first step runs in, and has no instance.
func (ev *event) pipeline(r *Request) (*Response, error) {
	f := ev.f
	if err := ev.endless(); err != nil {
		return nil, err
	}
	if err := ev.enter(); err != nil {
		return nil, err
	}
	ev.since = time.Now()
	f.handles(1)
	ev.end = func(error) {
		f.handles(-1)
		ev.leave(ev.kept())
	}
	c := &channel.Called{Function: strings.Join(f.config.Pipeline, "|"), Method: r.Method, Path: r.Path, Query: r.Query, Headers: r.Header, Body: r.Body, Length: r.Size}
	resp, step, err := ev.recorded(&ev.ctx, c)
	if err != nil {
		err = ev.stepFailed(step, err)
		ev.end(err)
		return nil, err
	}
	ev.body = replyBody{ReadCloser: resp.Body, ev: ev, whole: resp.Size >= 0, apart: resp.File != nil || resp.Bytes != nil}
	ev.resp, ev.last = *resp, eventOf(resp)
	ev.resp.ID, ev.resp.Body, ev.resp.Revision = ev.name, &ev.body, ""
	ev.watch()
	ev.answered.Store(true)
	if ev.ctx.Err() != nil { // expire may have come before
		ev.finish(context.Cause(&ev.ctx))
	}
	return &ev.resp, nil
}

// handles counts the events that a pipeline handles.
func (f *function) handles(n int) {
	f.mu.Lock()
	f.busy += n
	f.mu.Unlock()
}

// stepFailed is what the pipeline's client is told, and its owner.
func (ev *event) stepFailed(step int, err error) error {
	if ev.ctx.Err() != nil {
		return context.Cause(&ev.ctx)
	}
	ev.f.note(LogLine{Invocation: ev.name, Level: "error", Text: err.Error()})
	switch code := callCode(err); {
	case code == "not_found" || code == "image_gone":
		return &StepError{"step_missing", fmt.Errorf("%w: deploy it again, or the pipeline without it", err)}
	case code == "internal" || code == "cancelled" || step == 0:
		return err
	default:
		return &StepError{code, err}
	}
}

// endless refuses an event of a pipeline that is a step of itself, at whatever depth.
func (ev *event) endless() error {
	for l := ev.calls.from; l != nil && l.f.isPipeline(); l = l.from {
		if l.f.name == ev.f.name {
			return &LoopError{ev.calls.from.chain(ev.f.plain), ev.f.plain + " is a step of itself"}
		}
	}
	return nil
}

// checkPipeline refuses one with a step that is not there, or that has the pipeline itself
// among its own.
func (f *function) checkPipeline() error {
	var path []string
	seen := map[string]bool{}
	var look func(steps []string) error
	look = func(steps []string) error {
		for _, step := range steps {
			path = append(path, step)
			plain, revision, _ := strings.Cut(step, "@")
			name := image.QualifiedName(plain, f.config.Tenant)
			if name == f.name {
				return fmt.Errorf("%s is a step of itself: %s", f.plain, strings.Join(path, " → "))
			}
			inner, err := f.e.stepsOf(name, revision)
			if err != nil && len(path) == 1 { // what others lack is theirs
				return err
			}
			for _, steps := range inner {
				if seen[step] {
					break
				}
				if err := look(steps); err != nil {
					return err
				}
			}
			seen[step] = true
			path = path[:len(path)-1]
		}
		return nil
	}
	if err := look(f.config.Pipeline); err != nil {
		return &image.FieldError{Field: "pipeline", Message: err.Error()}
	}
	return nil
}

// stepsOf are the steps of the revisions of a function that events may go to, or of the one
// asked for, which must be there; none where they are no pipelines.
func (e *Engine) stepsOf(name, revision string) (all [][]string, err error) {
	d := (*e.functions.Load())[name]
	if d == nil {
		return nil, fmt.Errorf("there is no function %s: deploy it first", name)
	}
	if revision == "" {
		for number, f := range d.live {
			if d.spec.serves(number) && f.isPipeline() {
				all = append(all, f.config.Pipeline)
			}
		}
		return all, nil
	}
	number, err := d.spec.resolve(d.name, revision)
	if err != nil {
		return nil, err
	}
	img, err := e.cfg.Store.Image(string(d.spec.revision(number).Image))
	if err != nil {
		return nil, fmt.Errorf("revision %d of %s: %w: deploy it anew", number, name, ErrImageGone)
	}
	cfg, err := image.ConfigOf(img)
	if err != nil || cfg.Protocol != image.ProtocolPipeline {
		return nil, err
	}
	return [][]string{slices.Clone(cfg.Pipeline)}, nil
}
