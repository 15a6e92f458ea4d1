package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/server/listing"
	"github.com/fre-engine/fre/store"
)

// sandboxRoutes are the routes of running and ended sandboxes.
type sandboxRoutes struct {
	engine      Engine
	sandboxList map[bool]*listing.Cache[live.Sandbox] // key: whether the list includes ended sandboxes
}

func (s *sandboxRoutes) routes() []route {
	return []route{
		{"GET", "/v1/sandboxes", s.sandboxes},
		{"POST", "/v1/sandboxes/{id}/stop", s.stop},
		{"POST", "/v1/sandboxes/{id}/kill", s.kill},
		{"POST", "/v1/sandboxes/{id}/wait", s.wait},
		{"GET", "/v1/sandboxes/{id}/processes", s.processes},
	}
}

// sandboxes answers GET /v1/sandboxes?all=&size=&stats=. Without size and stats, the handler
// makes no system calls to build the list; size adds one or two per running sandbox.
func (s *sandboxRoutes) sandboxes(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	all, size, stats := q.flag("all"), q.flag("size"), q.flag("stats")
	if q.err != nil {
		return q.err
	}
	boxes, cache := s.engine.Sandboxes(all), s.sandboxList[all]
	if id := identityOf(r); !id.All() {
		boxes = only(boxes, id, sandboxTenant)
		cache = &listing.Cache[live.Sandbox]{Row: appendSandbox}
	}
	if !size && !stats {
		body, err := cache.Of(boxes)
		if err != nil {
			return err
		}
		body.ServeHTTP(w, r)
		return nil
	}
	// Splice the measurements into the encoded rows.
	measured := append(make([]byte, 0, 512*(len(boxes)+1)), '[')
	err := cache.Rows(boxes, func(i int, row []byte) error {
		if i > 0 {
			measured = append(measured, ',')
		}
		measured = append(measured, row[:len(row)-1]...)
		var err error
		if boxes[i].Exit == nil {
			measured, err = s.measure(measured, boxes[i], size, stats)
		}
		measured = append(measured, '}')
		return err
	})
	if err != nil {
		return err
	}
	listing.Send(w, http.StatusOK, append(measured, ']'))
	return nil
}

// measure appends the members size and stats, or nothing if the sandbox has ended since the
// listing.
func (s *sandboxRoutes) measure(buf []byte, b *live.Sandbox, size, stats bool) ([]byte, error) {
	if size {
		used, err := s.engine.Size(b)
		if errors.Is(err, os.ErrProcessDone) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
		buf = append(buf, `,"size":{"bytes":`...)
		buf = strconv.AppendInt(buf, used.Bytes, 10)
		buf = append(buf, `,"files":`...)
		buf = strconv.AppendInt(buf, used.Inodes, 10)
		buf = append(buf, '}')
	}
	if stats {
		used, err := s.engine.Stats(b.ID)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrProcessDone) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
		return appendJSON(append(buf, `,"stats":`...), statsOf(used))
	}
	return buf, nil
}

func appendSandbox(buf []byte, b *live.Sandbox) ([]byte, error) {
	return appendJSON(buf, sandboxOf(b))
}

// stop answers POST /v1/sandboxes/{id}/stop?grace=10s.
func (s *sandboxRoutes) stop(w http.ResponseWriter, r *http.Request) error {
	grace := 10 * time.Second
	if v := r.URL.Query().Get("grace"); v != "" {
		var err error
		if grace, err = time.ParseDuration(v); err != nil || grace < 0 {
			return badRequest("grace: %q is not a duration, for example 10s", v)
		}
	}
	if err := s.engine.Stop(r.Context(), r.PathValue("id"), grace); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// kill answers POST /v1/sandboxes/{id}/kill?signal=. Without signal, or with KILL, the answer
// follows the sandbox's end.
func (s *sandboxRoutes) kill(w http.ResponseWriter, r *http.Request) error {
	id, sig := r.PathValue("id"), unix.SIGKILL
	if name := r.URL.Query().Get("signal"); name != "" {
		var ok bool
		if sig, ok = container.ParseSignal(name); !ok {
			return badRequest("signal: unknown signal %q: write a name, for example HUP, or a number from 1 to 64", name)
		}
	}
	var err error
	if sig == unix.SIGKILL {
		err = s.engine.Kill(id)
	} else {
		err = s.engine.Signal(id, sig)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// wait answers POST /v1/sandboxes/{id}/wait, once the sandbox or container no longer runs.
func (s *sandboxRoutes) wait(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	var exit *sandbox.ExitStatus
	ended, err := s.engine.AwaitContainer(id, container.WaitNotRunning)
	if err == nil {
		var c *container.Container
		if c, err = ended(r.Context()); err == nil {
			exit = c.Exit
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		var b *live.Sandbox
		if b, err = s.engine.Wait(r.Context(), id); err == nil {
			exit = b.Exit
		}
	}
	if err != nil {
		return err
	}
	if exit == nil { // created and never run
		exit = &sandbox.ExitStatus{}
	}
	return reply(w, http.StatusOK, exitOf(*exit))
}

// processes answers GET /v1/sandboxes/{id}/processes.
func (s *sandboxRoutes) processes(w http.ResponseWriter, r *http.Request) error {
	found, err := s.engine.Processes(r.PathValue("id"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, list(found, func(p live.Process) api.Process {
		return api.Process{PID: p.PID, Parent: p.Parent, UID: p.UID, Started: p.Started.UTC(), CPUNanos: int64(p.CPU), Command: p.Command}
	}))
}

func (s *sandboxRoutes) find(r *http.Request) (string, error) {
	ref := r.PathValue("id")
	var found *live.Sandbox
	for _, b := range only(s.engine.Sandboxes(true), identityOf(r), sandboxTenant) {
		if b.Name == ref && ref != "" || b.ID == ref { // a container's name takes precedence over id prefixes
			found = b
			break
		}
		if !strings.HasPrefix(b.ID, ref) {
			continue
		}
		if found != nil {
			return "", fmt.Errorf("sandbox %q: %w", ref, store.ErrAmbiguous)
		}
		found = b
	}
	if found == nil {
		return "", fmt.Errorf("sandbox %q: %w", ref, fs.ErrNotExist)
	}
	r.SetPathValue("id", found.ID)
	return sandboxTenant(found), nil
}
