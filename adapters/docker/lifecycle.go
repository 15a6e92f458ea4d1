package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	types "github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/store"
)

// own returns a container for the operation named what. For an instance, own returns an error,
// because the engine starts and removes instances as events arrive.
func (s *server) own(ref, what string) (shownContainer, error) {
	c, err := s.container(ref)
	if err == nil && c.record == nil {
		err = conflict("container %s is an instance of %s: events start instances, not docker %s", ref, c.origin(), what)
	}
	return c, err
}

// containerStart answers POST /containers/ID/start.
func (s *server) containerStart(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "start")
	if err != nil {
		return err
	}
	// A client that disconnects has started the container all the same.
	err = s.engine.StartContainer(context.WithoutCancel(r.Context()), c.ID)
	if errors.Is(err, container.ErrContainerRunning) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// containerStop answers POST /containers/ID/stop?t=&signal=.
func (s *server) containerStop(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	how, err := stopOf(r)
	if err != nil {
		return err
	}
	switch {
	case !c.running():
		w.WriteHeader(http.StatusNotModified)
		return nil
	case c.record != nil:
		err = s.engine.StopContainer(r.Context(), c.ID, how)
	case how.Signal != 0:
		return leftOut("stop signals of an instance", "send a signal with docker kill -s; stop lets the instance finish the event first")
	default:
		err = s.engine.Stop(r.Context(), c.ID, how.Grace)
	}
	if err != nil && !ended(err) {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// containerRestart answers POST /containers/ID/restart?t=&signal=.
func (s *server) containerRestart(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "restart")
	if err != nil {
		return err
	}
	how, err := stopOf(r)
	if err != nil {
		return err
	}
	if err := s.engine.RestartContainer(context.WithoutCancel(r.Context()), c.ID, how); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stopOf parses how to stop a container: the grace period, by default 10 seconds, and the
// signal, by default the container's own.
func stopOf(r *http.Request) (how live.StopOptions, err error) {
	if v := r.URL.Query().Get("signal"); v != "" {
		if how.Signal, err = parseSignal(v); err != nil {
			return how, err
		}
	}
	how.Grace = 10 * time.Second
	v := r.URL.Query().Get("t")
	if v == "" {
		return how, nil
	}
	n, err := strconv.Atoi(v)
	switch {
	case err != nil || n > 1<<30:
		return how, badRequest("t: %q is not a number of seconds", v)
	case n < 0:
		how.Grace = 1 << 62 // no limit
	default:
		how.Grace = time.Duration(n) * time.Second
	}
	return how, nil
}

// ended reports whether err means that the container no longer runs.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, live.ErrContainerStopped) || errors.Is(err, os.ErrProcessDone)
}

// containerKill answers POST /containers/ID/kill?signal=.
func (s *server) containerKill(w http.ResponseWriter, r *http.Request) error {
	sig, err := parseSignal(r.URL.Query().Get("signal"))
	if err != nil {
		return err
	}
	c, err := s.live(r.PathValue("id"))
	if err != nil {
		return err
	}
	switch {
	case c.record != nil:
		err = s.engine.SignalContainer(c.ID, sig)
	case sig == unix.SIGKILL:
		err = s.engine.Kill(c.ID)
	default:
		err = s.engine.Signal(c.ID, sig)
	}
	if err != nil && ended(err) {
		return conflict("container %s is not running", c.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// parseSignal parses the name or number of a signal; the default is SIGKILL.
func parseSignal(text string) (unix.Signal, error) {
	if text == "" {
		return unix.SIGKILL, nil
	}
	if sig, ok := container.ParseSignal(text); ok {
		return sig, nil
	}
	return 0, badRequest("invalid signal: %s: use a name such as TERM or RTMIN+3, or a number up to 64", text)
}

// containerWait answers POST /containers/ID/wait?condition=. The handler sends the status at
// once, because clients wait for the status before they start the container.
func (s *server) containerWait(w http.ResponseWriter, r *http.Request) error {
	condition := container.WaitCondition(cmp.Or(r.URL.Query().Get("condition"), string(container.WaitNotRunning)))
	switch condition {
	case container.WaitNotRunning, container.WaitNextExit, container.WaitRemoved:
	default:
		return badRequest("invalid condition: %q: use not-running, next-exit or removed", condition)
	}
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	wait := func(ctx context.Context) (int, error) {
		if !c.running() {
			return c.exitCode(), nil
		}
		ended, err := s.engine.Wait(ctx, c.ID)
		if err != nil {
			return 0, err
		}
		return container.ExitCode(ended.Exit), nil
	}
	if c.record != nil {
		await, err := s.engine.AwaitContainer(c.ID, condition)
		if err != nil {
			return err
		}
		wait = func(ctx context.Context) (int, error) {
			record, err := await(ctx)
			if err != nil {
				return 0, err
			}
			return container.ExitCode(record.Exit), nil
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil //nolint:nilerr // the client has gone
	}
	status, err := wait(r.Context())
	answer := types.WaitResponse{StatusCode: int64(status)}
	if err != nil {
		answer = types.WaitResponse{StatusCode: -1, Error: &types.WaitExitError{Message: err.Error()}}
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may have disconnected
	return nil
}

// containerRename answers POST /containers/ID/rename?name=.
func (s *server) containerRename(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "rename")
	if err != nil {
		return err
	}
	if err := s.engine.RenameContainer(c.ID, strings.TrimPrefix(r.URL.Query().Get("name"), "/")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// containerRemove answers DELETE /containers/ID?force=&v=&link=. For an ended instance, the
// engine forgets the record.
func (s *server) containerRemove(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := s.removeContainer(c, boolOf(r, "force")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) removeContainer(c shownContainer, force bool) error {
	if c.record != nil {
		return s.engine.RemoveContainer(c.ID, container.RemoveForce(force))
	}
	if c.running() {
		if !force {
			return conflict("cannot remove container %q: container is running: stop the container before removing or force remove", "/"+c.name)
		}
		if err := s.engine.Kill(c.ID); err != nil {
			return err
		}
	}
	return s.engine.Forget(c.ID)
}

// containerPrune answers POST /containers/prune?filters=: removes stopped containers and ended
// instances.
func (s *server) containerPrune(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "until", "label", "label!")
	if err != nil {
		return err
	}
	until, err := f.moment("until", time.Now())
	if err != nil {
		return err
	}
	var answer types.PruneReport
	for _, c := range s.containers(true) {
		if c.running() || !f.labels(c.labels()) || !until.IsZero() && c.made.After(until) {
			continue
		}
		written, _ := s.sizes(c)
		if err := s.removeContainer(c, false); err != nil {
			if status := errorStatus(err); status == http.StatusNotFound || status == http.StatusConflict {
				continue // removed or started since the listing
			}
			return err
		}
		answer.ContainersDeleted = append(answer.ContainersDeleted, c.ID)
		answer.SpaceReclaimed += uint64(written)
	}
	s.engine.Changes().Add(store.Change{Kind: store.ChangeSandbox, Action: store.ActionPrune, Attributes: map[string]string{"bytes": strconv.FormatUint(answer.SpaceReclaimed, 10)}})
	return reply(w, http.StatusOK, answer)
}

// containerResize answers POST /containers/ID/resize?h=&w=, with the size in characters.
func (s *server) containerResize(w http.ResponseWriter, r *http.Request) error {
	c, err := s.own(r.PathValue("id"), "resize")
	if err != nil {
		return err
	}
	var size [2]uint16
	for i, key := range []string{"h", "w"} {
		n, err := strconv.ParseUint(r.URL.Query().Get(key), 10, 16)
		if err != nil {
			return badRequest("%s: %q is not a size of a terminal", key, r.URL.Query().Get(key))
		}
		size[i] = uint16(n)
	}
	if !c.record.Config.TTY {
		return conflict("container %s has no terminal: create the container with -t", c.ID)
	}
	if err := s.engine.ResizeContainer(c.ID, size[0], size[1]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
