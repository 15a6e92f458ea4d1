package engine

import (
	"context"
	"fmt"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

// ErrNotTraced: the function was deployed without [DeployOptions].Trace.
var ErrNotTraced = failure.New(failure.Conflict, "the function's file accesses are not recorded", "deploy a temporary function with trace, as fre image slim does")

// Slim makes an image from a function's image with only the files that the function has opened so
// far, and the files needed with them ([image.Builder.Slim]). The function must be deployed with
// [DeployOptions].Trace and must have answered every kind of event beforehand. Slim sets
// o.Opened. Errors: [UnknownError], [ErrNotTraced], sandbox.ErrOpensLost, *[live.QuotaError], those of
// the builder.
func (e *Engine) Slim(ctx context.Context, function string, o image.SlimOptions) (out *image.Slimmed, err error) {
	f, err := e.lookup(function)
	if err != nil {
		return nil, err
	}
	if f.opens == nil {
		return nil, fmt.Errorf("slim %s: %w", function, ErrNotTraced)
	}
	err = e.life.While(ctx, func(ctx context.Context) error {
		if o.Opened, err = f.opened(ctx); err != nil {
			return fmt.Errorf("slim %s: %w", function, err)
		}
		return e.Building(ctx, build.ImageTenant(f.image), function, nil, func(ctx context.Context) error {
			out, err = e.cfg.Builder.Slim(ctx, f.image, o)
			return err
		})
	})
	return out, err
}

// opened returns the paths opened by the function and by a parked interpreter for the function. A
// traced function has not started from a parked interpreter.
func (p *program) opened(ctx context.Context) ([]string, error) {
	if p.config.Parked != nil {
		ctx, cancel := context.WithTimeout(ctx, parkWithin)
		defer cancel()
		pi, err := p.host.startInterpreter(ctx, sandbox.Spec{
			Rootfs: p.host.cfg.Store.Rootfs(p.image.Digest), Args: p.config.Parked.Args, Env: p.config.Parked.Env, Opens: p.opens,
		})
		if err != nil {
			return nil, err
		}
		err = pi.conn.Parked(ctx)
		words := ""
		if err != nil {
			words = pi.lastWords()
		}
		pi.drop()
		if err != nil {
			return nil, fmt.Errorf("interpreter did not park: %w%s", err, words)
		}
	}
	return p.opens.Paths()
}
