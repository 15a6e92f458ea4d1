package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/server/listing"
	"github.com/fre-engine/fre/store"
)

// functionRoutes are the routes of functions, their revisions and triggers.
type functionRoutes struct {
	engine       Engine
	log          *slog.Logger
	invoker      gateway.Invoker
	maxInvoke    int64
	functionList listing.Cache[engine.Function]
}

func (s *functionRoutes) routes() []route {
	return []route{
		{"GET", "/v1/functions", s.functions},
		{"GET", "/v1/functions/{name}", s.function},
		{"DELETE", "/v1/functions/{name}", s.removeFunction},
		{"POST", "/v1/functions/{name}/invoke", s.invoke},
		{"GET", "/v1/functions/{name}/logs", s.logs},
		{"POST", "/v1/functions/{name}/slim", s.slim},
	}
}

func (s *functionRoutes) functions(w http.ResponseWriter, r *http.Request) error {
	if id := identityOf(r); !id.All() {
		return reply(w, http.StatusOK, list(only(s.engine.Functions(), id, functionTenant), functionOf))
	}
	body, err := s.functionList.Of(s.engine.Functions())
	if err != nil {
		return err
	}
	body.ServeHTTP(w, r)
	return nil
}

func (s *functionRoutes) function(w http.ResponseWriter, r *http.Request) error {
	f, err := s.engine.Function(r.PathValue("name"))
	if err != nil {
		return err
	}
	config, err := json.Marshal(f.Config)
	if err != nil {
		return fmt.Errorf("encode configuration of %s: %w", f.Name, err)
	}
	details := api.FunctionDetails{Function: functionOf(f), Config: config, Defences: list(f.Defences, func(s string) string { return s })}
	if f.Interpreters != nil {
		details.ParkedInterpreters = &api.ParkedInterpreters{Ready: f.Interpreters.Ready, Want: f.Interpreters.Want, MemoryBytes: f.Interpreters.Bytes}
	}
	return reply(w, http.StatusOK, details)
}

func (s *functionRoutes) removeFunction(w http.ResponseWriter, r *http.Request) error {
	if err := s.engine.RemoveFunction(r.Context(), r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// invoke answers POST /v1/functions/{name}/invoke. The request's body and headers become the
// event's body and headers; the query has the event's method, path and query.
func (s *functionRoutes) invoke(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	ev := gateway.Event{
		Engine: s.invoker, Log: s.log, Function: r.PathValue("name"), MaxBodyBytes: s.maxInvoke,
		Request: engine.Request{Method: q.Get("method"), Path: q.Get("path"), Query: q.Get("query")},
	}
	if ev.Method == "" {
		ev.Method = http.MethodPost
	}
	if ev.Path == "" {
		ev.Path = "/"
	}
	if !strings.HasPrefix(ev.Path, "/") {
		return badRequest("path %q does not begin with /", ev.Path)
	}
	if strings.ContainsRune(ev.Method+ev.Path+ev.Query, 0) {
		return badRequest("method, path and query hold no NUL")
	}
	return gateway.Forward(w, r, ev)
}

// logs answers GET /v1/functions/{name}/logs?follow=&tail=&since=, also for containers.
func (s *functionRoutes) logs(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	o := live.LogOptions{
		Follow: q.flag("follow"), Since: q.time("since"),
		Tail: q.number("tail", -1, -1, math.MaxInt, "is not a number of lines"),
	}
	if q.err != nil {
		return q.err
	}
	name := r.PathValue("name")
	if _, err := s.engine.Function(name); err != nil {
		if _, other := s.engine.Container(name); other != nil {
			return err
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil //nolint:nilerr // the client has gone
	}
	err := s.engine.Logs(r.Context(), name, o, func(l live.LogLine) error {
		return writeLine(w, api.LogEntry{Line: logLineOf(l)})
	})
	if err != nil && r.Context().Err() == nil {
		_ = writeLine(w, api.LogEntry{Error: errorOf(err)}) // best effort: the stream is broken already
	}
	return nil
}

// slim answers POST /v1/functions/{name}/slim.
func (s *functionRoutes) slim(w http.ResponseWriter, r *http.Request) error {
	var req api.SlimRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	done, err := s.engine.Slim(r.Context(), r.PathValue("name"), image.SlimOptions{Keep: req.Keep, DryRun: req.DryRun})
	if err != nil {
		return err
	}
	out := api.Slimmed{
		Before: api.FileTotals(done.Before), After: api.FileTotals(done.After),
		Gone: list(done.Gone, func(e store.Entry) api.GoneFile { return api.GoneFile{Path: e.Path, Size: e.Size} }),
	}
	if done.Image != nil {
		shown := imageOf(done.Image)
		out.Image = &shown
	}
	return reply(w, http.StatusOK, out)
}

func (s *functionRoutes) find(r *http.Request) (string, error) {
	name, _, _ := strings.Cut(r.PathValue("name"), "@") // function name in NAME@REVISION
	f, err := s.engine.Function(name)
	if err != nil {
		return "", err
	}
	return functionTenant(f), nil
}
