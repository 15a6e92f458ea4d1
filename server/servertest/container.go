package servertest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
)

// CreateContainer creates a container. The id is the SHA-256 of the name.
func (e *Engine) CreateContainer(_ context.Context, cfg container.Config) (*container.Container, error) {
	img, err := e.Image(cfg.Image)
	if err != nil {
		return nil, err
	}
	if cfg.Name == "" {
		cfg.Name = "calm_otter"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.containerLocked(cfg.Name) != nil {
		return nil, fmt.Errorf("create container: %w: %q is a container's already", engine.ErrNameTaken, cfg.Name)
	}
	c := &container.Container{
		ID: fmt.Sprintf("%x", sha256.Sum256([]byte(cfg.Name))), Config: cfg, Digest: img.Digest, Args: slices.Concat(cfg.Entrypoint, cfg.Cmd),
		Created: Epoch, State: live.StateCreated,
	}
	e.containers = append(e.containers, c)
	return c, nil
}

func (e *Engine) containerLocked(ref string) *container.Container {
	for _, c := range e.containers {
		if c.Config.Name == ref || c.ID == ref || len(ref) >= 6 && strings.HasPrefix(c.ID, ref) {
			return c
		}
	}
	return nil
}

// knownLocked is containerLocked with an error for an unknown container.
func (e *Engine) knownLocked(ref string) (*container.Container, error) {
	c := e.containerLocked(ref)
	if c == nil {
		return nil, fmt.Errorf("container %q: %w", ref, fs.ErrNotExist)
	}
	return c, nil
}

// Container describes a container.
func (e *Engine) Container(ref string) (*container.Container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.knownLocked(ref)
	if err != nil {
		return nil, err
	}
	shown := *c
	return &shown, nil
}

// StartContainer starts a container and logs the command line as the container's output.
func (e *Engine) StartContainer(_ context.Context, ref string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.knownLocked(ref)
	switch {
	case err != nil:
		return err
	case c.State == live.StateRunning:
		return fmt.Errorf("start container %s: %w", ref, container.ErrContainerRunning)
	}
	c.State, c.Started, c.PID = live.StateRunning, Epoch, 4343
	e.logLocked(c.Config.Name, strings.Join(c.Args, " "))
	return nil
}

// AwaitContainer waits until a container does not run, and ignores the condition.
func (e *Engine) AwaitContainer(ref string, _ container.WaitCondition) (func(context.Context) (*container.Container, error), error) {
	c, err := e.Container(ref)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*container.Container, error) {
		err := e.await(ctx, func() bool {
			now := e.containerLocked(c.ID)
			if now != nil {
				*c = *now
			}
			return now == nil || now.State != live.StateRunning
		})
		return c, err
	}, nil
}

// Attach always fails: this engine has no streams.
func (e *Engine) Attach(ref string, _ container.AttachOptions) (*container.Attachment, error) {
	return nil, fmt.Errorf("attach to container %q: %w", ref, live.ErrContainerStopped)
}

// RenameContainer gives a container another name. The id does not change.
func (e *Engine) RenameContainer(ref, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.knownLocked(ref)
	switch {
	case err != nil:
		return err
	case e.containerLocked(name) != nil:
		return fmt.Errorf("rename container: %w: %q is a container's already", engine.ErrNameTaken, name)
	}
	c.Config.Name = name
	return nil
}

// Containers lists containers, newest first.
func (e *Engine) Containers(all bool) []*container.Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*container.Container
	for _, c := range slices.Backward(e.containers) {
		if all || c.State == live.StateRunning {
			shown := *c
			out = append(out, &shown)
		}
	}
	return out
}

// RemoveContainer removes a container. A running container needs force.
func (e *Engine) RemoveContainer(ref string, force container.RemoveForce) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.knownLocked(ref)
	switch {
	case err != nil:
		return err
	case c.State == live.StateRunning && !bool(force):
		return fmt.Errorf("remove container %s: %w: stop it first, or use force", ref, container.ErrContainerRunning)
	}
	e.containers = slices.DeleteFunc(e.containers, func(other *container.Container) bool { return other == c })
	return nil
}
