package image

import (
	"context"
	"fmt"
	"strings"

	"github.com/fre-engine/fre/failure"
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
