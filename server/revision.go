package server

import (
	"net/http"
	"strconv"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
)

// revisionRoutes are the routes of functions' revisions.
type revisionRoutes struct {
	engine Engine
}

func (s *revisionRoutes) routes() []route {
	return []route{
		{"GET", "/v1/functions/{name}/revisions", s.revisions},
		{"DELETE", "/v1/functions/{name}/revisions/{revision}", s.removeRevision},
		{"POST", "/v1/functions/{name}/split", s.split},
		{"POST", "/v1/functions/{name}/rollback", s.rollback},
		{"POST", "/v1/functions/{name}/aliases", s.aliases},
	}
}

func (s *revisionRoutes) revisions(w http.ResponseWriter, r *http.Request) error {
	revisions, err := s.engine.Revisions(r.PathValue("name"))
	return replyRevisions(w, revisions, err)
}

func (s *revisionRoutes) split(w http.ResponseWriter, r *http.Request) error {
	var req api.SplitRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	revisions, err := s.engine.SetTraffic(r.Context(), r.PathValue("name"), engine.Split{
		Weights: list(req.Weights, func(w api.Weight) engine.Target { return engine.Target{Revision: w.Revision, Percent: w.Percent} }),
		Headers: list(req.Headers, func(h api.HeaderRoute) engine.Target {
			return engine.Target{Header: h.Name, Value: h.Value, Revision: h.Revision}
		}),
		Sticky: req.Sticky,
	})
	return replyRevisions(w, revisions, err)
}

func (s *revisionRoutes) rollback(w http.ResponseWriter, r *http.Request) error {
	var req api.RollbackRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	revisions, err := s.engine.Rollback(r.Context(), r.PathValue("name"), req.Revision)
	return replyRevisions(w, revisions, err)
}

func (s *revisionRoutes) aliases(w http.ResponseWriter, r *http.Request) error {
	var req api.AliasRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	revisions, err := s.engine.SetAliases(r.Context(), r.PathValue("name"), req.Set, req.Remove)
	return replyRevisions(w, revisions, err)
}

func (s *revisionRoutes) removeRevision(w http.ResponseWriter, r *http.Request) error {
	if err := s.engine.RemoveRevision(r.Context(), r.PathValue("name"), r.PathValue("revision")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func replyRevisions(w http.ResponseWriter, r *engine.Revisions, err error) error {
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, api.Revisions{
		Function: r.Function, Sticky: r.Traffic.Sticky,
		Revisions: list(r.Revisions, func(v engine.RevisionState) api.Revision {
			return api.Revision{
				Number: v.Number, Image: string(v.Image), ImageRef: v.Template + ":" + v.Version, Config: string(v.Config), Deployed: v.Deployed.UTC(), By: v.By,
				Percent: v.Percent, Aliases: v.Aliases, Instances: v.Instances, Resting: v.Resting, ImageGone: v.ImageGone,
			}
		}),
		Headers: list(r.Traffic.Headers, func(h engine.HeaderRoute) api.HeaderRoute {
			return api.HeaderRoute{Name: h.Name, Value: h.Value, Revision: strconv.Itoa(h.Revision)}
		}),
	})
}
