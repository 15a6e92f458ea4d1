package server

import (
	"errors"
	"io/fs"
	"net/http"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
)

// containerRoutes are the routes of containers and of commands in sandboxes of their own.
type containerRoutes struct {
	engine Engine
}

func (s *containerRoutes) routes() []route {
	return []route{
		{"POST", "/v1/containers", s.createContainer},
		{"POST", "/v1/containers/prune", s.pruneContainers},
		{"GET", "/v1/containers/{ref}", s.container},
		{"DELETE", "/v1/containers/{ref}", s.removeContainer},
		{"POST", "/v1/containers/{ref}/start", s.startContainer},
		{"POST", "/v1/containers/{ref}/rename", s.renameContainer},
	}
}

// createContainer answers POST /v1/containers.
func (s *containerRoutes) createContainer(w http.ResponseWriter, r *http.Request) error {
	var req api.ContainerRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	if req.Image == "" {
		return badRequest("image is needed")
	}
	memory, err := limitOf("memory", req.Memory)
	if err != nil {
		return err
	}
	scratch, err := limitOf("scratch", req.Scratch)
	if err != nil {
		return err
	}
	c, err := s.engine.CreateContainer(r.Context(), container.Config{
		Image: req.Image, Name: req.Name, Tenant: req.Tenant, Entrypoint: req.Entrypoint, Cmd: req.Args, Env: req.Env, Dir: req.Dir, User: req.User, Groups: req.Groups, CapAdd: req.CapAdd, CapDrop: req.CapDrop,
		Network: template.NetworkMode(req.Network), ScratchBytes: scratch, ReadOnly: req.ReadOnly, Work: container.WorkAccess(req.Work), AutoRemove: req.AutoRemove, TTY: req.TTY, OpenStdin: req.Stdin, StdinOnce: req.Stdin,
		Limits: sandbox.Limits{MemoryBytes: memory, CPUMillis: req.CPUMillis, Pids: req.Pids},
	})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, containerOf(c))
}

// container answers GET /v1/containers/{ref}.
func (s *containerRoutes) container(w http.ResponseWriter, r *http.Request) error {
	c, err := s.engine.Container(r.PathValue("ref"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, containerOf(c))
}

// startContainer answers POST /v1/containers/{ref}/start.
func (s *containerRoutes) startContainer(w http.ResponseWriter, r *http.Request) error {
	if err := s.engine.StartContainer(r.Context(), r.PathValue("ref")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// renameContainer answers POST /v1/containers/{ref}/rename.
func (s *containerRoutes) renameContainer(w http.ResponseWriter, r *http.Request) error {
	var req api.RenameRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	if err := s.engine.RenameContainer(r.PathValue("ref"), req.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// pruneContainers answers POST /v1/containers/prune: removes the stopped containers.
func (s *containerRoutes) pruneContainers(w http.ResponseWriter, r *http.Request) error {
	var req api.ContainerPruneRequest
	if err := decode(w, r, &req); err != nil {
		return err
	}
	report := api.ContainerPruneReport{DryRun: req.DryRun, Containers: []api.ContainerUsage{}}
	for _, c := range s.engine.Containers(true) {
		if c.State == live.StateRunning || req.Before != nil && !c.Created.Before(*req.Before) {
			continue
		}
		if !req.DryRun {
			err := s.engine.RemoveContainer(c.ID, false)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, container.ErrContainerRunning) {
				continue // removed or started since the listing
			}
			if err != nil {
				return err
			}
		}
		report.Containers = append(report.Containers, containerUsageOf(engine.ContainerUsage{ID: c.ID, Name: c.Config.Name, Usage: c.Scratch}))
		report.Bytes += c.Scratch.Bytes
		report.Inodes += c.Scratch.Inodes
	}
	return reply(w, http.StatusOK, report)
}

// removeContainer answers DELETE /v1/containers/{ref}?force=.
func (s *containerRoutes) removeContainer(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	force := q.flag("force")
	if q.err != nil {
		return q.err
	}
	if err := s.engine.RemoveContainer(r.PathValue("ref"), container.RemoveForce(force)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func containerOf(c *container.Container) api.Container {
	out := api.Container{
		ID: c.ID, Name: c.Config.Name, Image: c.Config.Image, Digest: string(c.Digest), Tenant: c.Config.Tenant, Args: c.Args,
		Dir: c.Config.Dir, User: c.Config.User, Stdin: c.Config.OpenStdin, TTY: c.Config.TTY, State: string(c.State), Error: c.Error, PID: c.PID, Created: c.Created,
	}
	if !c.Started.IsZero() {
		out.Started = &c.Started
	}
	if !c.Finished.IsZero() {
		out.Finished = &c.Finished
	}
	if c.Exit != nil {
		exit := exitOf(*c.Exit)
		out.Exit = &exit
	}
	return out
}
