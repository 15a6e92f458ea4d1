package server

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/template"
)

// agentRoutes are the routes of agents' sandboxes and snapshots.
type agentRoutes struct {
	of        *engine.Agents // nil: none
	log       *slog.Logger
	access    *access.Access // nil: no quotas
	maxInvoke int64
}

func (s *agentRoutes) routes() []route {
	return []route{
		{"GET", "/v1/agents", s.listAgents},
		{"POST", "/v1/agents", s.createAgent},
		{"GET", "/v1/agents/{id}", s.agent},
		{"DELETE", "/v1/agents/{id}", s.removeAgent},
		{"POST", "/v1/agents/{id}/exec", s.agentEvent("/exec")},
		{"GET", "/v1/agents/{id}/files", s.agentEvent("/files")},
		{"PUT", "/v1/agents/{id}/files", s.agentEvent("/files")},
		{"DELETE", "/v1/agents/{id}/files", s.agentEvent("/files")},
		{"GET", "/v1/agents/{id}/list", s.agentEvent("/list")},
		{"POST", "/v1/agents/{id}/mkdir", s.agentEvent("/mkdir")},
		{"POST", "/v1/agents/{id}/snapshots", s.snapshotAgent},
		{"GET", "/v1/snapshots", s.snapshots},
		{"DELETE", "/v1/snapshots/{ref}", s.removeSnapshot},
	}
}

// agents returns the agents' sandboxes, or an error if the server has none.
func (s *agentRoutes) agents() (*engine.Agents, error) {
	if s.of == nil {
		return nil, &api.Error{Code: failure.Unsupported, Message: "the engine has no sandboxes for agents"}
	}
	return s.of, nil
}

// createAgent answers POST /v1/agents, once the sandbox runs.
func (s *agentRoutes) createAgent(w http.ResponseWriter, r *http.Request) error {
	all, err := s.agents()
	if err != nil {
		return err
	}
	var req api.AgentRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	id := identityOf(r)
	if !id.All() {
		if req.Tenant != "" && req.Tenant != id.Tenant {
			return notOfTenant("the sandbox is to be tenant " + req.Tenant + "'s")
		}
		req.Tenant = id.Tenant
	}
	o := engine.AgentOptions{
		Tenant: req.Tenant, Image: req.Image, Snapshot: req.Snapshot, CPUMillis: req.CPUMillis, By: id.Who,
		Network: template.Network{Mode: template.NetworkMode(req.Network), Allow: req.Allow},
		Idle:    time.Duration(req.IdleSeconds) * time.Second, Age: time.Duration(req.AgeSeconds) * time.Second,
	}
	for _, of := range []struct {
		field, text string
		to          *int64
	}{{"memory", req.Memory, &o.MemoryBytes}, {"work", req.Work, &o.WorkBytes}} {
		if of.text == "" {
			continue
		}
		if *of.to, err = template.ParseBytes(of.text); err != nil {
			return badRequest("%s: %v", of.field, err)
		}
	}
	a, err := all.Create(r.Context(), o)
	if err != nil {
		return err
	}
	noteOn(r, a.ID)
	return reply(w, http.StatusCreated, agentOf(a))
}

func (s *agentRoutes) listAgents(w http.ResponseWriter, r *http.Request) error {
	all, err := s.agents()
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(only(all.List(), identityOf(r), func(a *engine.Agent) string { return a.Tenant }), agentOf))
}

func (s *agentRoutes) agent(w http.ResponseWriter, r *http.Request) error {
	all, err := s.agents()
	if err != nil {
		return err
	}
	a, err := all.Get(r.PathValue("id"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, agentOf(a))
}

func (s *agentRoutes) removeAgent(w http.ResponseWriter, r *http.Request) error {
	all, err := s.agents()
	if err != nil {
		return err
	}
	if err := all.Remove(r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// agentEvent forwards a request to the sandbox's adapter program, which answers in the API's
// format: see function/adapter/agent.go.
func (s *agentRoutes) agentEvent(path string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		all, err := s.agents()
		if err != nil {
			return err
		}
		a, err := all.Get(r.PathValue("id"))
		if err != nil {
			return err
		}
		if s.access != nil { // counts towards the tenant's event quota
			if err := s.access.Event(a.Tenant); err != nil {
				return err
			}
		}
		return gateway.Forward(w, r, gateway.Event{
			Engine: all, Log: s.log, Function: a.ID, MaxBodyBytes: s.maxInvoke,
			Request: engine.Request{Method: r.Method, Path: path, Query: r.URL.RawQuery},
		})
	}
}

func (s *agentRoutes) snapshotAgent(w http.ResponseWriter, r *http.Request) error {
	all, err := s.agents()
	if err != nil {
		return err
	}
	img, err := all.TakeSnapshot(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, snapshotOf(img))
}

func (s *agentRoutes) snapshots(w http.ResponseWriter, r *http.Request) error {
	all, err := s.agents()
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(only(all.Snapshots(), identityOf(r), build.ImageTenant), snapshotOf))
}

func (s *agentRoutes) removeSnapshot(w http.ResponseWriter, r *http.Request) error {
	all, err := s.agents()
	if err != nil {
		return err
	}
	if err := all.RemoveSnapshot(r.Context(), r.PathValue("ref")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *agentRoutes) findSnapshot(r *http.Request) (string, error) {
	all, err := s.agents()
	if err != nil {
		return "", err
	}
	return pinImage(r, all.Snapshot, all.Snapshots)
}

func (s *agentRoutes) findAgent(r *http.Request) (string, error) {
	all, err := s.agents()
	if err != nil {
		return "", err
	}
	a, err := all.Get(r.PathValue("id"))
	if err != nil {
		return "", err
	}
	return a.Tenant, nil
}
