package live

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/template"
)

// Networks gives sandboxes the networks of images.
type Networks struct {
	Host      *sandbox.Host
	AllowHost bool // images may ask for the host's network
}

// Set gives spec the network of an image. If the operator or the host refuses the network,
// the error is an *template.FieldError with the next step.
func (n Networks) Set(spec *sandbox.Spec, of template.Network) error {
	switch of.Mode {
	case "", template.NetworkNone: // as in images of tests
		return nil
	case template.NetworkHost:
		if !n.AllowHost {
			return &template.FieldError{Field: "network", Message: "the engine does not allow the mode host: set network.allow_host in the engine's configuration (fre serve --config)"}
		}
		spec.Network = sandbox.NetworkHost
		spec.Mounts = append(spec.Mounts, NetworkFiles(image.Settings{})...)
		return nil
	case template.NetworkEgress:
		for i, s := range of.Allow {
			d, err := template.ParseDestination(s)
			if err != nil {
				return &template.FieldError{Field: fmt.Sprintf("network.allow[%d]", i), Message: err.Error()}
			}
			spec.Egress.Allow = append(spec.Egress.Allow, egress.Destination(d))
		}
		spec.Network = sandbox.NetworkEgress
		err := n.Host.CheckNetwork(spec.Network, spec.Egress)
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
	return &template.FieldError{Field: "network", Message: fmt.Sprintf("unknown mode %q: write none, egress or host", of.Mode)}
}

// NetworkFiles returns the host files that a step with network needs to resolve names and to
// trust certificates.
func NetworkFiles(s image.Settings) []sandbox.Mount {
	var out []sandbox.Mount
	for source, target := range map[string]string{"/etc/resolv.conf": "/etc/resolv.conf", "/etc/hosts": "/etc/hosts", s.CACerts: "/etc/ssl/certs/ca-certificates.crt"} {
		if source == "" {
			continue
		}
		// Resolve links: resolv.conf is often a link, and a bind mount needs the file itself.
		if path, err := filepath.EvalSymlinks(source); err == nil {
			out = append(out, sandbox.Mount{Source: path, Target: target})
		}
	}
	return out
}
