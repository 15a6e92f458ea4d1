package server

import (
	"fmt"
	"io"
	"net/http"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine"
)

// systemRoutes are the routes of the engine itself: versions, state, changes, templates.
type systemRoutes struct {
	engine      Engine
	self        api.Version
	connections *buffer.Pool // nil: none
}

func (s *systemRoutes) routes() []route {
	return []route{
		{"GET", "/v1/version", s.version},
		{"GET", "/v1/status", s.engineStatus},
		{"GET", "/v1/doctor", s.doctor},
		{"GET", "/v1/template/schema", s.templateSchema},
		{"POST", "/v1/template/check", s.templateCheck},
	}
}

// engineStatus answers GET /v1/status.
func (s *systemRoutes) engineStatus(w http.ResponseWriter, _ *http.Request) error {
	st, err := s.engine.Status()
	if err != nil {
		return err
	}
	state := st.State.String()
	if st.Stopping {
		state = "stopping"
	}
	var connections buffer.Stats
	if p := s.connections; p != nil {
		connections = p.Stats()
	}
	return reply(w, http.StatusOK, api.Status{
		Version: s.self, Started: st.Started, State: state, Reason: string(st.Reason), Since: st.Since,
		Events: api.EventStatus{Running: st.Events, Limit: st.MostEvents, Waiting: st.Waiting, Queued: st.Queued, Functions: st.Functions},
		Functions: list(st.Busiest, func(f engine.FunctionLoad) api.FunctionLoad {
			return api.FunctionLoad{Name: f.Name, Instances: f.Instances, Busy: f.Busy, Waiting: f.Waiting, Queued: f.Queued}
		}),
		Buffers: bufferStatusOf(st.Buffers), Connections: bufferStatusOf(connections),
		Sandboxes: api.SandboxStatus{Live: st.Sandboxes, Bare: st.Parked.Bare, Attached: st.Parked.Attached, Cgroups: st.Cgroups},
	})
}

func bufferStatusOf(b buffer.Stats) api.BufferStatus {
	return api.BufferStatus{Bytes: b.Bytes, Held: b.Held, Peak: b.Peak, High: b.High, Low: b.Low, Pressed: b.Pressed, Waiting: b.Waiting}
}

func (s *systemRoutes) version(w http.ResponseWriter, _ *http.Request) error {
	return reply(w, http.StatusOK, s.self)
}

// doctor answers GET /v1/doctor?costs=.
func (s *systemRoutes) doctor(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	costs := q.flag("costs")
	if q.err != nil {
		return q.err
	}
	checks, err := s.engine.Checks(engine.CheckOptions{Costs: costs})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.Doctor{Checks: Checks(checks)})
}

func (s *systemRoutes) templateSchema(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/schema+json")
	_, _ = w.Write(api.TemplateSchema) // the client may have disconnected
	return nil
}

func (s *systemRoutes) templateCheck(w http.ResponseWriter, r *http.Request) error {
	src, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSONBytes))
	if err != nil {
		return fmt.Errorf("read template: %w", err)
	}
	t, err := s.engine.ParseTemplate(api.TemplateFile, src)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.TemplateInfo{ID: t.ID, Version: t.Version, Base: t.Base, Code: t.Code.Path, Reads: t.Reads()})
}
