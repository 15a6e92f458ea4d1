package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/template"
)

// BuildOptions are restrictions of a build, and labels of its image.
type BuildOptions struct {
	Locked  bool // fail with a [*LockError] rather than resolve again
	Offline bool // fail with [ErrOffline] rather than use a network
	AsIs    bool // use the code's files unchanged: no requests for packages in code, no build from source

	Labels map[string]string // in the image's Config
}

type optionsKey struct{}

// WithOptions returns a context for [Builder.Build]. Options travel with the context because
// fetching code, deep below, must ask: see [Offline].
func WithOptions(ctx context.Context, o BuildOptions) context.Context {
	return context.WithValue(ctx, optionsKey{}, o)
}

// OptionsOf returns the options in ctx; without options nothing is forbidden.
func OptionsOf(ctx context.Context) BuildOptions {
	o, _ := ctx.Value(optionsKey{}).(BuildOptions)
	return o
}

// ErrOffline says that an object is not in the store, and that the build must not fetch it.
var ErrOffline = failure.New(failure.BuildFailed, "is not in the local store, and the build is offline: build once without --offline, or pull or load an image with the object", "")

// Offline returns nil if a build may use a network, otherwise an [ErrOffline] that names what. Code
// calls Offline before fetching. The builder itself refuses steps that ask for a network
// ([Command]).
func Offline(ctx context.Context, what string) error {
	if !OptionsOf(ctx).Offline {
		return nil
	}
	return fmt.Errorf("%s %w", what, ErrOffline)
}

// guard is a Runner that keeps an offline build from the network.
type guard struct{ Runner }

// Run runs one build step.
func (g guard) Run(ctx context.Context, c Command) error {
	if c.Network {
		if err := Offline(ctx, "data for the step "+strings.Join(c.Args[:min(2, len(c.Args))], " ")); err != nil {
			return err
		}
	}
	return g.Runner.Run(ctx, c)
}

// LockError says that a build with BuildOptions.Locked would change the lock.
type LockError struct {
	Drift []string // sections that do not answer the template
}

func (e *LockError) Error() string {
	return fmt.Sprintf("%s does not fit the template: %s: build without --locked, check the changes of the file, and keep the file with the template", LockFile, strings.Join(e.Drift, "; "))
}

// Code returns [failure.BuildFailed].
func (e *LockError) Code() failure.Code { return failure.BuildFailed }

// drift compares l, the lock on disk, with next, the sections of l that answer the template, and
// with the sections that the template needs. The base is only a record and not compared: Debian's
// archive does not keep old packages.
func (l *Lock) drift(next *Lock, asked []string) error {
	if l == nil {
		return &LockError{[]string{"the file is missing"}}
	}
	old, err := l.sections()
	if err != nil {
		return err
	}
	now, err := next.sections()
	if err != nil {
		return err
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if !bytes.Equal(old[name], now[name]) {
			out = append(out, name+": locked for another request")
		}
	}
	for _, name := range asked {
		if old[name] == nil {
			out = append(out, name+": not locked")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if old[name] == nil && !slices.Contains(asked, name) {
			out = append(out, name+": not locked")
		}
	}
	if out == nil {
		return nil
	}
	return &LockError{out}
}

// sections returns the lock's members, without version and base.
func (l *Lock) sections() (map[string]json.RawMessage, error) {
	raw, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	var out map[string]json.RawMessage
	err = json.Unmarshal(raw, &out)
	delete(out, "version")
	delete(out, "base")
	return out, err
}

// asked returns the sections of a lock that the template needs.
func (b *Builder) asked(t *template.Template) []string {
	var out []string
	for _, site := range b.Sites {
		if r := t.Packages.Of(site.Name()); !r.None() {
			out = append(out, site.Name())
		}
	}
	if !t.Packages.Of("deb").None() || len(t.Libs) > 0 {
		out = append(out, "deb")
	}
	if t.Code.Git != nil {
		out = append(out, "git")
	}
	return out
}
