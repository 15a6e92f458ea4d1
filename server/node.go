package server

import (
	"context"
	"net/http"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/cluster"
	"github.com/fre-engine/fre/failure"
)

// nodeRoutes are the routes of the cluster's nodes.
type nodeRoutes struct {
	cluster Nodes // nil: the engine is alone
}

func (s *nodeRoutes) routes() []route {
	return []route{
		{"GET", "/v1/nodes", s.nodes},
		{"POST", "/v1/nodes/{name}/drain", s.drainNode},
		{"POST", "/v1/nodes/{name}/undrain", s.undrainNode},
	}
}

// among returns the cluster's nodes, or an error if the engine is alone.
func (s *nodeRoutes) among() (Nodes, error) {
	if s.cluster == nil {
		return nil, &api.Error{Code: failure.Unsupported, Message: "the engine is not in a cluster", Next: "configure the node and a registry (cluster in the engine's configuration)"}
	}
	return s.cluster, nil
}

// nodes answers GET /v1/nodes.
func (s *nodeRoutes) nodes(w http.ResponseWriter, _ *http.Request) error {
	n, err := s.among()
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(n.Nodes(), nodeOf))
}

func nodeOf(m cluster.Member) api.Node {
	same := func(s string) string { return s }
	return api.Node{
		Name: m.Name, Self: m.Self, State: string(m.State), Version: m.Version, Protocol: m.Protocol, Address: m.Address, Memory: m.Memory,
		Instances: m.Instances, Busy: m.Busy, Warm: list(m.Warm, same), Lacking: list(m.Lacking, same), SeenMS: m.Seen.Milliseconds(),
	}
}

// drainNode answers POST /v1/nodes/{name}/drain.
func (s *nodeRoutes) drainNode(w http.ResponseWriter, r *http.Request) error {
	return s.changeNode(w, r, Nodes.Drain)
}

// undrainNode answers POST /v1/nodes/{name}/undrain.
func (s *nodeRoutes) undrainNode(w http.ResponseWriter, r *http.Request) error {
	return s.changeNode(w, r, Nodes.Undrain)
}

func (s *nodeRoutes) changeNode(w http.ResponseWriter, r *http.Request, change func(Nodes, context.Context, string) error) error {
	n, err := s.among()
	if err != nil {
		return err
	}
	if err := change(n, r.Context(), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
