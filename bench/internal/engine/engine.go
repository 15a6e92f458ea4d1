// Package engine gives a benchmark an engine to measure: one of its own on a
// temporary state directory, or one that is already running.
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

	"github.com/fre-engine/fre/internal/daemon"
)

// Options say which engine. Register adds them to a flag set.
type Options struct {
	Bin    string // the fre program
	Socket string // of a running engine, with Addr
	Addr   string // of a running engine's HTTP side
	Serve  string // further arguments of fre serve, separated by spaces
}

// Register defines the options' flags.
func (o *Options) Register(f *flag.FlagSet) {
	f.StringVar(&o.Bin, "bin", "bin/fre", "the fre program")
	f.StringVar(&o.Socket, "fre-socket", "", "control socket of an engine that already runs (with -fre-addr)")
	f.StringVar(&o.Addr, "fre-addr", "", "HTTP address of an engine that already runs (with -fre-socket)")
	f.StringVar(&o.Serve, "serve", "", "further arguments of fre serve, separated by spaces")
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
	e.own, err = daemon.Start(ctx, daemon.Config{Bin: o.Bin, State: filepath.Join(dir, "state"), Args: strings.Fields(o.Serve)})
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

// PID is the process of the benchmark's own engine, 0 for one that ran before.
func (e *Engine) PID() int {
	if e.own == nil {
		return 0
	}
	return e.own.PID()
}

// CLI runs a command of fre against the engine and returns what it printed.
func (e *Engine) CLI(ctx context.Context, args ...string) (string, error) {
	return daemon.Command(ctx, e.opts.Bin, append([]string{"--socket", e.opts.Socket}, args...)...)
}

// JSON runs a command of fre with --format json, which prints one value per
// line, and returns the values.
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

// Rootfs is the tree of an image of the benchmark's own engine: the files that
// its sandboxes have, for a peer to run. It is not to be written to.
func (e *Engine) Rootfs(digest string) string {
	return filepath.Join(e.Images(), strings.TrimPrefix(digest, "sha256:"), "rootfs")
}

// Images is the directory of all images of the benchmark's own engine.
func (e *Engine) Images() string { return filepath.Join(e.dir, "state", "store", "images") }

// Deploy builds and deploys the template directory under a name and returns
// the directory of the copy it was built from.
func (e *Engine) Deploy(ctx context.Context, template, name string) (string, error) {
	return e.DeployWith(ctx, template, name, nil)
}

// DeployWith is Deploy with other values for the fields of fret.yaml's top
// level that are named.
func (e *Engine) DeployWith(ctx context.Context, template, name string, fields map[string]any) (string, error) {
	// The copy has the template's own name, by which its program is called.
	dst := filepath.Join(e.dir, name, filepath.Base(template))
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return "", err
	}
	if err := daemon.CopyTemplate(ctx, template, dst); err != nil {
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
			_, err := e.CLI(ctx, "function", "rm", name)
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(e.dir))
	return errors.Join(errs...)
}
