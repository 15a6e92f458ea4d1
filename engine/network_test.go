package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// TestDeployRefusesNetwork: the engine refuses a network that the operator does not allow or the
// engine does not know. The error names the setting to change. test/system tests the networks that
// a host may offer.
func TestDeployRefusesNetwork(t *testing.T) {
	r := open(t)
	for _, c := range []struct {
		network     template.Network
		field, want string
	}{
		{template.Network{Mode: template.NetworkHost}, "network", "network.allow_host"},
		{template.Network{Mode: "bridge"}, "network", `unknown mode "bridge"`},
		{template.Network{Mode: template.NetworkNone, LendConnection: true}, "network.lend_connection", "default/f may not use lent connections: list the function under network.lend_connections"},
		{template.Network{Mode: template.NetworkEgress, Allow: []string{"example.org", "a b"}}, "network.allow[1]", "write a name"},
	} {
		img := r.image("f", func(cfg *image.Config) { cfg.Network = c.network })
		_, err := r.Deploy(t.Context(), "f", img, DeployOptions{})
		var field *template.FieldError
		if !errors.As(err, &field) || field.Field != c.field || !strings.Contains(field.Message, c.want) {
			t.Errorf("deploy with %+v: %v, want an error about %s with %q", c.network, err, c.field, c.want)
		}
	}
}
