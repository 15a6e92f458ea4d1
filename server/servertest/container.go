package servertest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fre-engine/fre/engine"
)

// CreateContainer creates a container. The id is the SHA-256 of the name.
func (e *Engine) CreateContainer(_ context.Context, cfg engine.ContainerConfig) (*engine.Container, error) {
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
	c := &engine.Container{
		ID: fmt.Sprintf("%x", sha256.Sum256([]byte(cfg.Name))), Config: cfg, Digest: img.Digest, Args: slices.Concat(cfg.Entrypoint, cfg.Cmd),
		Created: Epoch, State: engine.StateCreated,
	}
	e.containers = append(e.containers, c)
	return c, nil
}

func (e *Engine) containerLocked(ref string) *engine.Container {
	for _, c := range e.containers {
		if c.Config.Name == ref || c.ID == ref || len(ref) >= 6 && strings.HasPrefix(c.ID, ref) {
			return c
		}
	}
	return nil
}

// knownLocked is containerLocked with an error for an unknown container.
func (e *Engine) knownLocked(ref string) (*engine.Container, error) {
	c := e.containerLocked(ref)
	if c == nil {
		return nil, fmt.Errorf("container %q: %w", ref, fs.ErrNotExist)
	}
	return c, nil
}

// Container describes a container.
func (e *Engine) Container(ref string) (*engine.Container, error) {
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
	case c.State == engine.StateRunning:
		return fmt.Errorf("start container %s: %w", ref, engine.ErrContainerRunning)
	}
	c.State, c.Started, c.PID = engine.StateRunning, Epoch, 4343
	e.logLocked(c.Config.Name, strings.Join(c.Args, " "))
	return nil
}

// AwaitContainer waits until a container does not run, and ignores the condition.
func (e *Engine) AwaitContainer(ref string, _ engine.WaitCondition) (func(context.Context) (*engine.Container, error), error) {
	c, err := e.Container(ref)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*engine.Container, error) {
		err := e.await(ctx, func() bool {
			now := e.containerLocked(c.ID)
			if now != nil {
				*c = *now
			}
			return now == nil || now.State != engine.StateRunning
		})
		return c, err
	}, nil
}

// Attach always fails: this engine has no streams.
func (e *Engine) Attach(ref string, _ engine.AttachOptions) (*engine.Attachment, error) {
	return nil, fmt.Errorf("attach to container %q: %w", ref, engine.ErrContainerStopped)
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
func (e *Engine) Containers(all bool) []*engine.Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*engine.Container
	for _, c := range slices.Backward(e.containers) {
		if all || c.State == engine.StateRunning {
			shown := *c
			out = append(out, &shown)
		}
	}
	return out
}

// RemoveContainer removes a container. A running container needs force.
func (e *Engine) RemoveContainer(ref string, force engine.RemoveForce) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, err := e.knownLocked(ref)
	switch {
	case err != nil:
		return err
	case c.State == engine.StateRunning && !bool(force):
		return fmt.Errorf("remove container %s: %w: stop it first, or use force", ref, engine.ErrContainerRunning)
	}
	e.containers = slices.DeleteFunc(e.containers, func(other *engine.Container) bool { return other == c })
	return nil
}
