// Package engine provides the engine for a benchmark: a new engine with a temporary state
// directory, or a running engine.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// Options select the engine. Register adds the options to a flag set.
type Options struct {
	Bin    string // the fre program
	Socket string // of a running engine; set together with Addr
	Addr   string // HTTP address of a running engine
	State  string // state directory of a new engine, kept with its images for the next run; default: a temporary one
	Serve  string // further arguments of fre serve, separated by spaces
}

// Register defines the options' flags.
func (o *Options) Register(f *flag.FlagSet) {
	f.StringVar(&o.Bin, "bin", "bin/fre", "the fre program")
	f.StringVar(&o.Socket, "fre-socket", "", "control socket of an engine that already runs (with -fre-addr)")
	f.StringVar(&o.Addr, "fre-addr", "", "HTTP address of an engine that already runs (with -fre-socket)")
	f.StringVar(&o.State, "state", "", "state directory of the engine, which keeps images for the next run (default: a temporary one)")
	f.StringVar(&o.Serve, "serve", "", "further arguments of fre serve, separated by spaces")
}

// Engine is an engine to which a benchmark deploys functions.
type Engine struct {
	opts Options
	own  *testdaemon.Daemon // nil if the engine already ran
	dir  string             // holds copies of templates, and the state unless Options.State is set
	keep bool               // the state is for the next run too
	done []string           // functions that Close removes from an engine or a state that stays
}

// Open starts an engine, or uses the running engine named by the options.
func Open(ctx context.Context, o Options) (*Engine, error) {
	if (o.Socket == "") != (o.Addr == "") {
		return nil, errors.New("-fre-socket and -fre-addr go together")
	}
	if o.Socket != "" && o.State != "" {
		return nil, errors.New("-state is for a new engine, and -fre-socket names a running one: omit -state")
	}
	var err error
	if o.Bin, err = filepath.Abs(o.Bin); err != nil {
		return nil, err
	}
	// /tmp may be in memory, but the state belongs on a disk.
	dir, err := os.MkdirTemp("/var/tmp", "fre-bench-")
	if err != nil {
		return nil, err
	}
	e := &Engine{opts: o, dir: dir}
	if o.Socket != "" {
		return e, nil
	}
	if e.opts.State == "" {
		e.opts.State = filepath.Join(dir, "state")
	} else {
		e.keep = true
		if e.opts.State, err = filepath.Abs(o.State); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	e.own, err = testdaemon.Start(ctx, testdaemon.Config{Bin: o.Bin, State: e.opts.State, Args: strings.Fields(o.Serve)})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e.opts.Socket, e.opts.Addr = e.own.Socket(), e.own.Addr()
	return e, nil
}

// Addr returns the HTTP address, "host:port".
func (e *Engine) Addr() string { return e.opts.Addr }

// Version returns the command line that prints fre's version. Without an engine the command fails.
func (e *Engine) Version() []string {
	return []string{e.opts.Bin, "--socket", e.opts.Socket, "version"}
}

// Dir returns the benchmark's own directory. The directory is on the same disk as the state; Close
// removes the directory.
func (e *Engine) Dir() string { return e.dir }

// PID returns the process id of the benchmark's engine, 0 for an engine that already ran.
func (e *Engine) PID() int {
	if e.own == nil {
		return 0
	}
	return e.own.PID()
}

// CLI runs a fre command against the engine and returns the standard output.
func (e *Engine) CLI(ctx context.Context, args ...string) (string, error) {
	return testdaemon.Command(ctx, e.opts.Bin, append([]string{"--socket", e.opts.Socket}, args...)...)
}

// JSON runs a fre command with --format json, which prints one value per line, and returns the
// values.
func JSON[T any](ctx context.Context, e *Engine, args ...string) ([]T, error) {
	out, err := e.CLI(ctx, append(args, "--format", "json")...)
	if err != nil {
		return nil, err
	}
	var values []T
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var v T
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("fre %s: %w", strings.Join(args, " "), err)
		}
		values = append(values, v)
	}
	return values, nil
}

// Rootfs returns the root directory of an image of the benchmark's engine: the files of a sandbox,
// for a peer to run. The caller must not write to the directory.
func (e *Engine) Rootfs(digest string) string {
	return filepath.Join(e.Images(), strings.TrimPrefix(digest, "sha256:"), "rootfs")
}

// Images returns the directory of all images of the benchmark's engine.
func (e *Engine) Images() string { return filepath.Join(e.opts.State, "store", "images") }

// Deploy builds a copy of the template directory, deploys the image under a name and returns the
// directory of the copy.
func (e *Engine) Deploy(ctx context.Context, template, name string) (string, error) {
	return e.DeployWith(ctx, template, name, nil)
}

// DeployWith is Deploy with replaced values for the given top-level fields of fret.yaml.
func (e *Engine) DeployWith(ctx context.Context, template, name string, fields map[string]any) (string, error) {
	// The copy keeps the template's directory name, because the program's name derives from it.
	dst := filepath.Join(e.dir, name, filepath.Base(template))
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return "", err
	}
	if err := testdaemon.CopyTemplate(ctx, template, dst); err != nil {
		return "", err
	}
	if err := override(filepath.Join(dst, "fret.yaml"), fields); err != nil {
		return "", err
	}
	if _, err := e.CLI(ctx, "deploy", dst, "--name", name); err != nil {
		return "", err
	}
	e.done = append(e.done, name)
	return dst, nil
}

func override(path string, fields map[string]any) error {
	if len(fields) == 0 {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var template map[string]any
	if err := yaml.Unmarshal(text, &template); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	maps.Copy(template, fields)
	if text, err = yaml.Marshal(template); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, text, 0o644)
}

// Close stops the engine, and removes the deployed functions from an engine that already ran or from
// a kept state. Then Close removes the benchmark's directory.
func (e *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if e.own == nil || e.keep {
		for _, name := range e.done {
			_, err := e.CLI(ctx, "function", "rm", name)
			errs = append(errs, err)
		}
	}
	if e.own != nil {
		errs = append(errs, e.own.Stop(ctx))
	}
	errs = append(errs, os.RemoveAll(e.dir))
	return errors.Join(errs...)
}
