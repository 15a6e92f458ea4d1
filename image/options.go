package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// BuildOptions say what a build may not do, and what its image is to say.
type BuildOptions struct {
	Locked  bool // it fails by a [*LockError] rather than resolve anything anew
	Offline bool // it fails by an [ErrOffline] rather than use a network
	AsIs    bool // the code's files are all of it: none asks for packages, none is built from source

	Labels map[string]string // of the image's Config
}

type optionsKey struct{}

// WithOptions returns a context for [Builder.Build]. Options travel with the
// context because whatever fetches, deep below, has to ask: see [Offline].
func WithOptions(ctx context.Context, o BuildOptions) context.Context {
	return context.WithValue(ctx, optionsKey{}, o)
}

// OptionsOf returns what WithOptions was given; without it nothing is forbidden.
func OptionsOf(ctx context.Context) BuildOptions {
	o, _ := ctx.Value(optionsKey{}).(BuildOptions)
	return o
}

// ErrOffline says that something is not in the local registry, and that the build
// is not allowed to fetch it.
var ErrOffline = errors.New("is not in the local registry, and the build is offline: build once without --offline, or pull or load an image that holds it")

// Offline returns nil where a build may use a network, and otherwise an
// [ErrOffline] about what it lacks. Whatever is about to fetch calls it; steps that
// ask for a network ([Command]) are refused by the builder itself.
func Offline(ctx context.Context, what string) error {
	if !OptionsOf(ctx).Offline {
		return nil
	}
	return fmt.Errorf("%s %w", what, ErrOffline)
}

// guard is a Runner that keeps a build which is offline from its networks.
type guard struct{ Runner }

// Run runs one build step.
func (g guard) Run(ctx context.Context, c Command) error {
	if c.Network {
		if err := Offline(ctx, "what "+strings.Join(c.Args[:min(2, len(c.Args))], " ")+" would fetch"); err != nil {
			return err
		}
	}
	return g.Runner.Run(ctx, c)
}

// LockError says that a build would change the lock, which it was told not to do.
type LockError struct {
	Drift []string // what the lock does not answer
}

func (e *LockError) Error() string {
	return fmt.Sprintf("%s does not answer the template: %s: build without --locked, look at what changes in the file, and keep it with the template", LockFile, strings.Join(e.Drift, "; "))
}

// drift compares l, what is on disk, with next, what of it answers the template,
// and with the sections that the template asks for. The base is a record, and not
// compared: an archive of Debian packages cannot be made to go back.
func (l *Lock) drift(next *Lock, asked []string) error {
	if l == nil {
		return &LockError{[]string{"there is no such file"}}
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
			out = append(out, name+": what is locked is the answer to another request")
		}
	}
	for _, name := range asked {
		if old[name] == nil {
			out = append(out, name+": nothing is locked")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if old[name] == nil && !slices.Contains(asked, name) {
			out = append(out, name+": nothing is locked")
		}
	}
	if out == nil {
		return nil
	}
	return &LockError{out}
}

// sections are the lock's members but for version and base.
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

// asked are the sections of a lock that the template needs.
func (b *Builder) asked(t *Template) []string {
	var out []string
	for _, site := range b.Sites {
		if r := t.Packages.of(site.Name()); r != nil && !r.None() {
			out = append(out, site.Name())
		}
	}
	if !t.Packages.Deb.None() || len(t.Libs) > 0 {
		out = append(out, "deb")
	}
	if t.Code.Git != nil {
		out = append(out, "git")
	}
	return out
}
