package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// pipeline has the function's steps handle the event. The event takes an engine slot, which the
// first step uses, and no instance.
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
	c := &channel.Called{Function: strings.Join(f.config.Pipeline, "|"), Request: *r}
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

// stepFailed logs the error of a step for the pipeline's owner and returns the client's error.
func (ev *event) stepFailed(step int, err error) error {
	if ev.ctx.Err() != nil {
		return context.Cause(&ev.ctx)
	}
	ev.f.note(live.LogLine{Invocation: ev.name, Level: "error", Text: err.Error()})
	switch code := callCode(err); {
	case code == failure.NotFound || code == failure.ImageGone:
		return &StepError{failure.StepMissing, fmt.Errorf("%w: deploy the step again, or the pipeline without the step", err)}
	case code == failure.Internal || code == failure.Cancelled || step == 0:
		return err
	default:
		return &StepError{code, err}
	}
}

// endless returns an error if the pipeline is a step of itself, at any depth.
func (ev *event) endless() error {
	for l := ev.calls.from; l != nil && l.f.isPipeline(); l = l.from {
		if l.f.name == ev.f.name {
			return &LoopError{ev.calls.from.chain(ev.f.plain), ev.f.plain + " is a step of itself"}
		}
	}
	return nil
}

// checkPipeline returns a *template.FieldError if a step is missing or if the pipeline contains
// itself.
func (e *Engine) checkPipeline(f *function) error {
	var path []string
	seen := map[string]bool{}
	var look func(steps []string) error
	look = func(steps []string) error {
		for _, step := range steps {
			path = append(path, step)
			plain, revision, _ := strings.Cut(step, "@")
			name := template.QualifiedName(plain, f.config.Tenant)
			if name == f.name {
				return fmt.Errorf("%s is a step of itself: %s", f.plain, strings.Join(path, " → "))
			}
			inner, err := e.stepsOf(name, revision)
			if err != nil && len(path) == 1 { // blame an inner pipeline, not f, for a missing inner step
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
		return &template.FieldError{Field: "pipeline", Message: err.Error()}
	}
	return nil
}

// stepsOf returns the steps of a pipeline: of all revisions that serve events, or of the named
// revision, which must exist. The result is nil for a function that is no pipeline.
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
	img, err := e.cfg.Store.Image(string(d.spec.keptRevision(number).Image))
	if err != nil {
		return nil, fmt.Errorf("revision %d of %s: %w: deploy again", number, name, ErrImageGone)
	}
	cfg, err := image.ConfigOf(img)
	if err != nil || cfg.Protocol != image.ProtocolPipeline {
		return nil, err
	}
	return [][]string{slices.Clone(cfg.Pipeline)}, nil
}
