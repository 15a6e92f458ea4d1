package docker

import (
	"net/http"
	"strings"

	"github.com/moby/moby/api/types/network"

	"github.com/fre-engine/fre/template"
)

// Docker's names of the networks; a template's egress is Docker's bridge.
const (
	networkNone   = "none"
	networkBridge = "bridge"
	networkHost   = "host"
)

// networkModes maps Docker's networks to network modes of images.
var networkModes = map[string]template.NetworkMode{networkNone: template.NetworkNone, networkBridge: template.NetworkEgress, networkHost: template.NetworkHost}

var networkIDs = map[string]string{
	networkBridge: strings.Repeat("b", 64), networkHost: strings.Repeat("1", 64), networkNone: strings.Repeat("0", 64),
}

// networkID returns the id of a network, or "".
func networkID(name string) string { return networkIDs[name] }

// networks returns the network modes of a container, as Docker networks.
func networks() []network.Inspect {
	var out []network.Inspect
	for _, n := range []struct{ name, driver string }{
		{networkBridge, "bridge"}, {networkHost, "host"}, {networkNone, "null"},
	} {
		out = append(out, network.Inspect{Network: network.Network{
			Name: n.name, ID: networkID(n.name), Scope: "local", Driver: n.driver, EnableIPv4: true,
			IPAM: network.IPAM{Driver: "default", Config: []network.IPAMConfig{}}, Options: map[string]string{}, Labels: map[string]string{},
		}, Containers: map[string]network.EndpointResource{}})
	}
	return out
}

func findNetwork(id string) (network.Inspect, error) {
	for _, n := range networks() {
		if n.Name == id || len(id) >= 3 && strings.HasPrefix(n.ID, id) {
			return n, nil
		}
	}
	return network.Inspect{}, notFound("network %s not found", id)
}

func networkList(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "name", "id", "driver", "scope", "type", "label", "dangling")
	if err != nil {
		return err
	}
	out := []network.Inspect{}
	for _, n := range networks() {
		if f.like("name")(n.Name) && f.like("id")(n.ID) && f.has("driver", n.Driver) && f.has("scope", n.Scope) && f.has("type", "builtin") && f.labels(nil) && f.has("dangling", "false", "0") {
			out = append(out, n)
		}
	}
	return reply(w, http.StatusOK, out)
}

func networkInspect(w http.ResponseWriter, r *http.Request) error {
	n, err := findNetwork(r.PathValue("id"))
	if scope := r.URL.Query().Get("scope"); err == nil && scope != "" && scope != n.Scope {
		err = notFound("network %s not found in the scope %s: FRE's networks have the scope %s", n.Name, scope, n.Scope)
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, n)
}

type endpoint struct {
	NetworkID  string
	EndpointID string
	Gateway    string
	IPAddress  string
}
