package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/template"
)

// setNetwork gives spec the network of an image. If the operator or the host refuses the network,
// the error is an *image.FieldError with the next step.
func (e *Engine) setNetwork(spec *sandbox.Spec, n template.Network) error {
	switch n.Mode {
	case "", template.NetworkNone: // as in images of tests
		return nil
	case template.NetworkHost:
		if !e.cfg.AllowHostNetwork {
			return &template.FieldError{Field: "network", Message: "the engine does not allow the mode host: set network.allow_host in the engine's configuration (fre serve --config)"}
		}
		spec.Network = sandbox.NetworkHost
		spec.Mounts = append(spec.Mounts, networkFiles(image.Settings{})...)
		return nil
	case template.NetworkEgress:
		for i, s := range n.Allow {
			d, err := template.ParseDestination(s)
			if err != nil {
				return &template.FieldError{Field: fmt.Sprintf("network.allow[%d]", i), Message: err.Error()}
			}
			spec.Egress.Allow = append(spec.Egress.Allow, egress.Destination(d))
		}
		spec.Network = sandbox.NetworkEgress
		err := e.cfg.Sandboxes.CheckNetwork(spec.Network, spec.Egress)
		var blocked *egress.BlockedError
		switch {
		case errors.As(err, &blocked):
			i := slices.Index(spec.Egress.Allow, blocked.Destination)
			return &template.FieldError{Field: fmt.Sprintf("network.allow[%d]", i), Message: err.Error()}
		case err != nil:
			return &template.FieldError{Field: "network", Message: err.Error()}
		}
		return nil
	}
	return &template.FieldError{Field: "network", Message: fmt.Sprintf("unknown mode %q: write none, egress or host", n.Mode)}
}
