package servertest

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
)

// Sandboxes lists the sandboxes of functions and containers; with all, also ended sandboxes.
func (e *Engine) Sandboxes(all bool) []*live.Sandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []*live.Sandbox
	for _, b := range e.sandboxes {
		if all || b.Exit == nil {
			shown := *b
			list = append(list, &shown)
		}
	}
	for _, c := range e.containers {
		if all || c.State == live.StateRunning {
			list = append(list, &live.Sandbox{
				ID: c.ID, Name: c.Config.Name, Image: c.Config.Image, Command: strings.Join(c.Args, " "), State: c.State, PID: c.PID, Created: c.Created, Exit: c.Exit,
			})
		}
	}
	return list
}

func (e *Engine) liveLocked(prefix string) (*live.Sandbox, error) {
	for _, b := range e.sandboxes {
		if b.Exit == nil && prefix != "" && strings.HasPrefix(b.ID, prefix) {
			return b, nil
		}
	}
	return nil, fmt.Errorf("sandbox %q: %w", prefix, fs.ErrNotExist)
}

// Size returns the same size for every live sandbox.
func (e *Engine) Size(s *live.Sandbox) (sandbox.Size, error) {
	if s.Exit != nil {
		return sandbox.Size{}, os.ErrProcessDone
	}
	return sandbox.Size{Bytes: 4096, Inodes: 1}, nil
}

// Stats returns the same values for every live sandbox.
func (e *Engine) Stats(id string) (sandbox.Stats, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.liveLocked(id); err != nil && e.containerLocked(id) == nil {
		return sandbox.Stats{}, err
	}
	return sandbox.Stats{MemoryBytes: 12 << 20, CPU: 1500 * time.Millisecond, Processes: 1, TmpBytes: 4096}, nil
}

// Processes returns the first process of a sandbox.
func (e *Engine) Processes(id string) ([]live.Process, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.containerLocked(id); c != nil && c.State == live.StateRunning {
		return []live.Process{{PID: c.PID, Parent: 1, UID: 165536, Started: Epoch, CPU: 250 * time.Millisecond, Command: strings.Join(c.Args, " ")}}, nil
	}
	b, err := e.liveLocked(id)
	if err != nil {
		return nil, err
	}
	return []live.Process{{PID: b.PID, Parent: 1, UID: 165536, Started: Epoch, CPU: 1500 * time.Millisecond, Command: b.Command}}, nil
}

// Wait waits until a sandbox has ended.
func (e *Engine) Wait(ctx context.Context, id string) (*live.Sandbox, error) {
	var found *live.Sandbox
	err := e.await(ctx, func() bool {
		found = nil
		for _, b := range e.sandboxes {
			if id != "" && strings.HasPrefix(b.ID, id) {
				shown := *b
				found = &shown
			}
		}
		return found == nil || found.Exit != nil
	})
	if err == nil && found == nil {
		err = fmt.Errorf("sandbox %q: %w", id, fs.ErrNotExist)
	}
	return found, err
}

func (e *Engine) endLocked(function string) {
	for _, b := range e.sandboxes {
		if b.Function == function {
			exitLocked(b, sandbox.ExitStatus{})
		}
	}
}

func exitLocked(b *live.Sandbox, s sandbox.ExitStatus) {
	if b.Exit == nil {
		b.State, b.PID, b.Defences, b.Ended, b.Exit = "exited", 0, nil, Epoch.Add(time.Minute), &s
	}
}

// Stop ends a sandbox with status 0.
func (e *Engine) Stop(_ context.Context, id string, _ time.Duration) error {
	e.mu.Lock()
	if c := e.containerLocked(id); c != nil && c.State == live.StateRunning {
		defer e.mu.Unlock()
		c.State, c.PID, c.Finished, c.Exit = live.StateExited, 0, Epoch, &sandbox.ExitStatus{}
		e.wakeLocked()
		return nil
	}
	e.mu.Unlock()
	return e.end(id, sandbox.ExitStatus{})
}

// Kill ends a sandbox by SIGKILL.
func (e *Engine) Kill(id string) error {
	return e.end(id, sandbox.ExitStatus{Code: -1, Signal: int(unix.SIGKILL)})
}

func (e *Engine) end(id string, s sandbox.ExitStatus) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	b, err := e.liveLocked(id)
	if err != nil {
		return err
	}
	exitLocked(b, s)
	e.wakeLocked()
	return nil
}

// Run executes one of the commands cat, echo WORD…, env, exit N, yes (until killed), sleep (until
// killed, without reading) and locked (fails: not executable).
func (e *Engine) Run(ctx context.Context, r container.RunRequest) (result container.RunResult, err error) {
	if _, err := e.Image(r.Image); err != nil {
		return result, err
	}
	result.Start = sandbox.StartBare
	if r.Trace {
		result.Trace = []sandbox.TraceStep{{Name: "prepared", Done: 40 * time.Microsecond}, {Name: "executed", Done: 150500}}
	}
	switch args := r.Args; args[0] {
	case "cat":
		if _, err := io.Copy(r.Stdout, r.Stdin); err != nil {
			return result, err
		}
	case "echo":
		_, _ = fmt.Fprintln(r.Stdout, strings.Join(args[1:], " "))
	case "env":
		_, _ = fmt.Fprintln(r.Stdout, strings.Join(r.Env, "\n"))
	case "exit":
		_, _ = fmt.Fprintln(r.Stderr, "leaving")
		result.Code, _ = strconv.Atoi(args[1])
	case "yes":
		for ctx.Err() == nil {
			_, _ = fmt.Fprintln(r.Stdout, "y")
		}
		return result, context.Cause(ctx)
	case "sleep":
		_, _ = fmt.Fprintln(r.Stdout, "asleep")
		<-ctx.Done()
		return result, context.Cause(ctx)
	case "locked":
		return result, &sandbox.StartError{Step: sandbox.StepExec, Detail: "locked", Err: unix.EACCES}
	default:
		return result, &sandbox.StartError{Step: sandbox.StepExec, Detail: args[0], Err: unix.ENOENT}
	}
	return result, nil
}

// Signal ends a sandbox by a signal, as if the sandbox did not handle the signal.
func (e *Engine) Signal(id string, sig unix.Signal) error {
	return e.end(id, sandbox.ExitStatus{Code: -1, Signal: int(sig)})
}
