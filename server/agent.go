package server

import (
	"context"
	"net/http"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// agents returns the engine for agents' sandboxes, or an error if the server has no such engine.
func (s *server) agents() (*engine.Engine, error) {
	if s.cfg.Agents == nil {
		return nil, &api.Error{Code: failure.Unsupported, Message: "the engine has no sandboxes for agents"}
	}
	return s.cfg.Agents, nil
}

// createAgent answers POST /v1/agents, once the sandbox runs.
func (s *server) createAgent(w http.ResponseWriter, r *http.Request) error {
	e, err := s.agents()
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
	a, err := e.CreateAgent(r.Context(), o)
	if err != nil {
		return err
	}
	noteOn(r, a.ID)
	return reply(w, http.StatusCreated, agentOf(a))
}

func (s *server) listAgents(w http.ResponseWriter, r *http.Request) error {
	e, err := s.agents()
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(only(e.Agents(), identityOf(r), func(a *engine.Agent) string { return a.Tenant }), agentOf))
}

func (s *server) agent(w http.ResponseWriter, r *http.Request) error {
	e, err := s.agents()
	if err != nil {
		return err
	}
	a, err := e.Agent(r.PathValue("id"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, agentOf(a))
}

func (s *server) removeAgent(w http.ResponseWriter, r *http.Request) error {
	e, err := s.agents()
	if err != nil {
		return err
	}
	if err := e.RemoveAgent(r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// agentInvoker is a gateway.Invoker that sends events to agents' sandboxes.
type agentInvoker struct{ e *engine.Engine }

// Invoke sends r to the agent's sandbox with the given id.
func (i agentInvoker) Invoke(ctx context.Context, id string, r *engine.Request) (*engine.Response, error) {
	return i.e.InvokeAgent(ctx, id, r)
}

// agentEvent forwards a request to the sandbox's adapter program, which answers in the API's
// format: see runtimes/httpserver/adapter/agent.go.
func (s *server) agentEvent(path string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		e, err := s.agents()
		if err != nil {
			return err
		}
		a, err := e.Agent(r.PathValue("id"))
		if err != nil {
			return err
		}
		if s.cfg.Access != nil { // counts towards the tenant's event quota
			if err := s.cfg.Access.Event(a.Tenant); err != nil {
				return err
			}
		}
		return gateway.Forward(w, r, gateway.Event{
			Engine: agentInvoker{e}, Log: s.log, Function: a.ID, MaxBodyBytes: s.cfg.MaxInvokeBytes,
			Method: r.Method, Path: path, Query: r.URL.RawQuery,
		})
	}
}

func (s *server) snapshotAgent(w http.ResponseWriter, r *http.Request) error {
	e, err := s.agents()
	if err != nil {
		return err
	}
	img, err := e.SnapshotAgent(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, snapshotOf(img))
}

func (s *server) snapshots(w http.ResponseWriter, r *http.Request) error {
	e, err := s.agents()
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(only(e.Snapshots(), identityOf(r), engine.ImageTenant), snapshotOf))
}

func (s *server) removeSnapshot(w http.ResponseWriter, r *http.Request) error {
	e, err := s.agents()
	if err != nil {
		return err
	}
	img, err := e.Snapshot(r.PathValue("ref"))
	if err != nil {
		return err
	}
	if _, err := e.RemoveImage(r.Context(), string(img.Digest), engine.RemoveOptions{Force: true}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func agentOf(a *engine.Agent) api.Agent {
	network := string(a.Network.Mode)
	if network == "" {
		network = string(template.NetworkNone)
	}
	return api.Agent{
		ID: a.ID, Tenant: a.Tenant, Image: a.Image, Snapshot: string(a.Snapshot), Network: network, Allow: a.Network.Allow,
		MemoryBytes: a.Resources.MemoryBytes, CPUMillis: a.Resources.CPUMillis, WorkBytes: a.WorkBytes,
		Created: a.Created, Used: a.Used, Expires: a.Expires, By: a.By, Busy: a.Busy, Running: a.Running, OOMKills: a.OOMKills,
	}
}

func snapshotOf(img *store.Image) api.Snapshot {
	return api.Snapshot{Name: img.Built, Digest: string(img.Digest), Tenant: engine.ImageTenant(img), Created: img.Created, Bytes: img.Size, Files: img.Files}
}
