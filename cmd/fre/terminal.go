package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

// joining describes how to join a container's streams.
type joining struct {
	keys      string                      // the keys that leave a terminal
	input     bool                        // pass standard input on, if the container reads it
	joined    func() error                // called as soon as all further output is received
	interrupt func(context.Context) error // action of the first signal; nil: leave
}

func (j *joining) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&j.keys, "detach-keys", api.DetachKeys, "`KEYS` that detach from a terminal, separated by commas: each a character, or ctrl- and one of a-z @[\\]^_")
}

// check refuses a join in vain, before the caller makes a container.
func (j *joining) check(cmd *cobra.Command, box api.Container) error {
	if _, err := api.ParseKeys(j.keys); err != nil {
		return command.Usage(fmt.Errorf("--detach-keys: %w", err))
	}
	if j.input && box.Stdin && box.TTY && asTerminal(cmd.InOrStdin()) == nil {
		return failure.Hint(command.Usage(errors.New("the container has a terminal, but standard input is no terminal")), "run the command at a terminal; or omit --tty or --interactive; or attach with --no-stdin")
	}
	return nil
}

// join connects to a container's input and output until the container ends, or until the keys or a
// signal leave it.
func (j *joining) join(cmd *cobra.Command, cl *client.Client, box api.Container) error {
	if err := j.check(cmd, box); err != nil {
		return err
	}
	exit, err := j.attach(cmd, cl, box)
	switch {
	case errors.Is(err, api.ErrDetached):
		fmt.Fprintf(cmd.ErrOrStderr(), "\nfre: detached from %s; to attach again: fre attach %s\n", box.Name, box.Name)
		return nil
	case err != nil:
		return runError{err}
	}
	return ended(cmd, exit)
}

// attach does the work of join. Meanwhile the user's terminal is raw: it passes keys on without
// acting on them. Signals cannot end this program before the terminal is restored.
func (j *joining) attach(cmd *cobra.Command, cl *client.Client, box api.Container) (exit api.Exit, err error) {
	ctx, leave := context.WithCancelCause(cmd.Context())
	var wait sync.WaitGroup
	defer wait.Wait()
	defer leave(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	wait.Go(func() {
		for interrupt := j.interrupt; ; interrupt = nil {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			if interrupt == nil {
				leave(context.Canceled)
			} else if err := interrupt(ctx); err != nil {
				leave(err)
			}
		}
	})

	streams := client.RunIO{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr()}
	if j.input && box.Stdin {
		streams.Stdin = cmd.InOrStdin()
	}
	newline := "\n"
	o := client.AttachOptions{Joined: func() error {
		if j.joined != nil {
			return j.joined()
		}
		if box.State != "running" {
			fmt.Fprintf(cmd.ErrOrStderr(), "fre: container %s does not run; to start the container: fre start %s%s", box.Name, box.Name, newline)
		}
		return nil
	}}
	if !box.TTY {
		return cl.Containers().Attach(ctx, box.ID, streams, o)
	}
	screen := asTerminal(cmd.OutOrStdout())
	if streams.Stdin != nil {
		screen = asTerminal(streams.Stdin)
		before, err := term.MakeRaw(int(screen.Fd()))
		if err != nil {
			return api.Exit{}, fmt.Errorf("make the terminal raw: %w", err)
		}
		defer func() {
			if failed := term.Restore(int(screen.Fd()), before); failed != nil {
				err = errors.Join(err, fmt.Errorf("restore the terminal: %w", failed))
			}
		}()
		newline = "\r\n"
		keys, err := api.ParseKeys(j.keys)
		if err != nil {
			return api.Exit{}, err
		}
		streams.Stdin = &api.EscapeReader{From: screen, Keys: keys}
	}
	if screen != nil {
		resized := make(chan os.Signal, 1)
		signal.Notify(resized, unix.SIGWINCH)
		defer signal.Stop(resized)
		o.Resized = resized
		o.Size = func() api.TerminalSize {
			columns, rows, _ := term.GetSize(int(screen.Fd())) // 0, 0 if the terminal is gone
			return api.TerminalSize{Rows: uint16(rows), Columns: uint16(columns)}
		}
	}
	return cl.Containers().Attach(ctx, box.ID, streams, o)
}

// asTerminal returns stream if it is a terminal, else nil.
func asTerminal(stream any) *os.File {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return f
}
