package server

import (
	"errors"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
)

// sandboxes answers GET /v1/sandboxes?all=&size=.
func (s *server) sandboxes(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	all, err := queryBool(q.Get("all"))
	if err != nil {
		return badRequest("all: %v", err)
	}
	size, err := queryBool(q.Get("size"))
	if err != nil {
		return badRequest("size: %v", err)
	}
	out := list(s.engine.Sandboxes(all), sandboxOf)
	if size {
		for i := range out {
			if out[i].Ended != nil {
				continue
			}
			stats, err := s.engine.Stats(out[i].ID)
			if errors.Is(err, fs.ErrNotExist) {
				continue // ended since
			}
			if err != nil {
				return err
			}
			out[i].Stats = statsOf(stats)
		}
	}
	return reply(w, http.StatusOK, out)
}

// stop answers POST /v1/sandboxes/{id}/stop?grace=10s.
func (s *server) stop(w http.ResponseWriter, r *http.Request) error {
	grace := 10 * time.Second
	if v := r.URL.Query().Get("grace"); v != "" {
		var err error
		if grace, err = time.ParseDuration(v); err != nil || grace < 0 {
			return badRequest("grace: %q is not a duration such as 10s", v)
		}
	}
	if err := s.engine.Stop(r.Context(), r.PathValue("id"), grace); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) kill(w http.ResponseWriter, r *http.Request) error {
	if err := s.engine.Kill(r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// logs answers GET /v1/functions/{name}/logs?follow=&tail=&since=.
func (s *server) logs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	o := engine.LogOptions{Tail: -1}
	var err error
	if o.Follow, err = queryBool(q.Get("follow")); err != nil {
		return badRequest("follow: %v", err)
	}
	if v := q.Get("tail"); v != "" {
		if o.Tail, err = strconv.Atoi(v); err != nil || o.Tail < -1 {
			return badRequest("tail: %q is not a number of lines", v)
		}
	}
	if v := q.Get("since"); v != "" {
		if o.Since, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return badRequest("since: %q is not an RFC 3339 time", v)
		}
	}
	name := r.PathValue("name")
	if _, err := s.engine.Function(name); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil //nolint:nilerr // the client has gone
	}
	err = s.engine.Logs(r.Context(), name, o, func(l engine.LogLine) error {
		return writeLine(w, api.LogEntry{Line: logLineOf(l)})
	})
	if err != nil && r.Context().Err() == nil {
		_ = writeLine(w, api.LogEntry{Error: errorOf(err)}) // best effort: the stream is broken already
	}
	return nil
}
