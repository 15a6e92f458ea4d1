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
)

// joining is how a container's streams are joined.
type joining struct {
	keys      string                      // that leave a terminal
	input     bool                        // pass the standard input on, where the container reads it
	joined    func() error                // called once nothing that is printed is missed
	interrupt func(context.Context) error // what the first signal does; nil: leave
}

func (j *joining) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&j.keys, "detach-keys", api.DetachKeys, "what leaves a terminal when typed: `KEYS` with commas between, each a character or ctrl- and one of a-z @[\\]^_")
}

// check refuses what join would, before anything was made for it.
func (j *joining) check(cmd *cobra.Command, box api.Container) error {
	if _, err := api.ParseKeys(j.keys); err != nil {
		return usageError{fmt.Errorf("--detach-keys: %w", err)}
	}
	if j.input && box.Stdin && box.TTY && asTerminal(cmd.InOrStdin()) == nil {
		return &hintError{usageError{errors.New("the standard input is no terminal, which the container's would take the place of")}, "run this at a terminal; or leave away --tty, or --interactive; or attach with --no-stdin"}
	}
	return nil
}

// join takes part in what a container reads and prints until it has ended, or is
// left by the keys or a signal.
func (j *joining) join(cmd *cobra.Command, cl *client.Client, box api.Container) error {
	if err := j.check(cmd, box); err != nil {
		return err
	}
	exit, err := j.attach(cmd, cl, box)
	switch {
	case errors.Is(err, api.ErrDetached):
		fmt.Fprintf(cmd.ErrOrStderr(), "\nfre: left %s; fre attach %s comes back\n", box.Name, box.Name)
		return nil
	case err != nil:
		return runError{err}
	}
	return ended(cmd, exit)
}

// attach is join's work. While it lasts the user's terminal passes on what is typed
// instead of acting on it, and no signal ends this program without its being put
// back as it was.
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
			fmt.Fprintf(cmd.ErrOrStderr(), "fre: %s does not run: fre start %s starts it%s", box.Name, box.Name, newline)
		}
		return nil
	}}
	if !box.TTY {
		return cl.Attach(ctx, box.ID, streams, o)
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
			columns, rows, _ := term.GetSize(int(screen.Fd())) // 0, 0 if it has gone
			return api.TerminalSize{Rows: uint16(rows), Columns: uint16(columns)}
		}
	}
	return cl.Attach(ctx, box.ID, streams, o)
}

// asTerminal is stream if it is a terminal, else nil.
func asTerminal(stream any) *os.File {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return f
}
