// Package engine gives a benchmark an engine to measure: one of its own on a
// temporary state directory, or one that is already running.
package engine

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"time"

	"github.com/fre-engine/fre/internal/daemon"
)

// Options say which engine. Register adds them to a flag set.
type Options struct {
	Bin    string // the fre program
	Socket string // of a running engine, with Addr
	Addr   string // of a running engine's HTTP side
}

// Register defines the options' flags.
func (o *Options) Register(f *flag.FlagSet) {
	f.StringVar(&o.Bin, "bin", "bin/fre", "the fre program")
	f.StringVar(&o.Socket, "fre-socket", "", "control socket of an engine that already runs (with -fre-addr)")
	f.StringVar(&o.Addr, "fre-addr", "", "HTTP address of an engine that already runs (with -fre-socket)")
}

// Engine is an engine functions can be deployed to.
type Engine struct {
	opts Options
	own  *daemon.Daemon // nil for one that ran before
	dir  string         // state and copies of templates
	done []string       // functions to remove again
}

// Open starts an engine, or takes the running one the options name.
func Open(ctx context.Context, o Options) (*Engine, error) {
	if (o.Socket == "") != (o.Addr == "") {
		return nil, errors.New("-fre-socket and -fre-addr go together")
	}
	bin, err := filepath.Abs(o.Bin)
	if err != nil {
		return nil, err
	}
	o.Bin = bin
	// Not /tmp, which may be memory: the state belongs on a disk.
	dir, err := os.MkdirTemp("/var/tmp", "fre-bench-")
	if err != nil {
		return nil, err
	}
	e := &Engine{opts: o, dir: dir}
	if o.Socket != "" {
		return e, nil
	}
	e.own, err = daemon.Start(ctx, daemon.Config{Bin: o.Bin, State: filepath.Join(dir, "state")})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e.opts.Socket, e.opts.Addr = e.own.Socket(), e.own.Addr()
	return e, nil
}

// Addr is the HTTP address, "host:port".
func (e *Engine) Addr() string { return e.opts.Addr }

// Version is the command line that prints which fre this is: without an engine
// the program says so and fails.
func (e *Engine) Version() []string {
	return []string{e.opts.Bin, "--socket", e.opts.Socket, "version"}
}

// Dir is a directory of the benchmark's own, on the state's disk, removed by
// Close.
func (e *Engine) Dir() string { return e.dir }

// Deploy builds and deploys the template directory under a name and returns
// the directory of the copy it was built from.
func (e *Engine) Deploy(ctx context.Context, template, name string) (string, error) {
	// The copy has the template's own name, by which its program is called.
	dst := filepath.Join(e.dir, name, filepath.Base(template))
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return "", err
	}
	if err := daemon.CopyTemplate(ctx, template, dst); err != nil {
		return "", err
	}
	if _, err := daemon.Command(ctx, e.opts.Bin, "--socket", e.opts.Socket, "deploy", dst, "--name", name); err != nil {
		return "", err
	}
	e.done = append(e.done, name)
	return dst, nil
}

// Close stops the engine, or removes the functions from one that ran before,
// and removes everything of the benchmark's own.
func (e *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if e.own != nil {
		errs = append(errs, e.own.Stop(ctx))
	} else {
		for _, name := range e.done {
			_, err := daemon.Command(ctx, e.opts.Bin, "--socket", e.opts.Socket, "function", "rm", name)
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(e.dir))
	return errors.Join(errs...)
}
