package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

// containerFlags describe a container, besides its image and command.
type containerFlags struct {
	set        *pflag.FlagSet
	req        api.ContainerRequest
	cpus       float64
	entrypoint string
}

func (o *containerFlags) flags(cmd *cobra.Command) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.StringVar(&o.req.Name, "name", "", "what it is called; default: made up")
	f.StringVar(&o.entrypoint, "entrypoint", "", "program before the command, instead of the image's; empty: none")
	f.StringVarP(&o.req.Dir, "workdir", "w", "", "working directory")
	f.StringVarP(&o.req.User, "user", "u", "", "`USER[:GROUP]`, names of the image or numbers")
	f.StringArrayVar(&o.req.Groups, "group-add", nil, "further `GROUP` of that user; may be repeated")
	f.StringArrayVar(&o.req.CapDrop, "cap-drop", nil, "`CAPABILITY` that root is not to have, or ALL; may be repeated")
	f.StringArrayVar(&o.req.CapAdd, "cap-add", nil, "`CAPABILITY` that it keeps all the same; may be repeated")
	f.StringVar(&o.req.Network, "network", "", "none, egress or host; default: none")
	f.StringVarP(&o.req.Memory, "memory", "m", "", "limit, as in 512MiB; default: a quarter of the host's")
	f.Float64Var(&o.cpus, "cpus", 0, "limit; default: all")
	f.Int64Var(&o.req.Pids, "pids", 0, "limit of processes and threads; default: 4096")
	f.StringVar(&o.req.Scratch, "scratch", "", "limit of what it writes to its root, as in 1GiB; default: 10GiB where the host can keep one")
	f.BoolVar(&o.req.ReadOnly, "read-only", false, "its root takes no writes")
	f.StringVar(&o.req.Work, "work", "", "see the tenant's /work: ro or rw")
	f.BoolVarP(&o.req.TTY, "tty", "t", false, "it has a terminal, with --interactive the one of those who attach")
	cmd.Flags().AddFlagSet(f)
	cmd.Flags().StringVar(&o.req.Tenant, "tenant", "", "whose ids it has, and whose /work it sees; default: default")
	cmd.Flags().StringArrayVarP(&o.req.Env, "env", "e", nil, "`KEY=VALUE`; may be repeated")
	cmd.Flags().SetInterspersed(false) // flags behind IMAGE are the command's
	o.set = f
}

// given reports whether the user set a flag that requires a container.
func (o *containerFlags) given() bool {
	given := false
	o.set.VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
	return given
}

// request builds the request from flags and arguments.
func (o *containerFlags) request(args []string) api.ContainerRequest {
	req := o.req
	req.Image, req.Args = imageAndCommand(args)
	req.CPUMillis = int64(math.Round(o.cpus * 1000))
	if o.set.Changed("entrypoint") {
		req.Entrypoint = []string{o.entrypoint}
	}
	return req
}

func (c *cli) runCommand() *cobra.Command {
	var o containerFlags
	var j joining
	var trace bool
	cmd := &cobra.Command{
		Use:   "run IMAGE [-- COMMAND [ARG...]]",
		Short: "Run a command in a sandbox of its own",
		Long: `Run a command in a sandbox of its own, whose root is the image. Input, output
and exit status are passed through (fre help exit-codes); Ctrl-C kills it.

With --tty, a name, a user, a limit or whatever else fre create can say, but for
--env and --tenant, it is a container, gone when it ends. Then the image's own
command runs where none is named, and /work is writable unless --work says ro.

With --tty and --interactive the container's terminal takes the place of the one
here: Ctrl-C goes to what runs inside, Ctrl-P Ctrl-Q leaves it running, fre attach
comes back to it.`,
		Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: c.completeImageFirst,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := o.request(args)
			cl := c.client()
			defer cl.Close()
			switch {
			case o.given() && trace:
				return usageError{errors.New("--trace is for a plain run, which is no container: give no more than --env and --tenant with it")}
			case o.given():
				if !o.set.Changed("work") {
					req.Work = "rw"
				}
				j.input = j.input || !req.TTY
				req.Stdin, req.AutoRemove = j.input, true
				return j.run(cmd, cl, req)
			case len(req.Args) == 0:
				return usageError{errors.New("name a command: fre run IMAGE -- COMMAND")}
			}
			kill, stop := onInterrupt()
			defer stop()
			plain := api.RunRequest{Image: req.Image, Args: req.Args, Env: req.Env, Tenant: req.Tenant, Trace: trace}
			exit, err := cl.Run(cmd.Context(), plain, client.RunIO{Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(), Kill: kill})
			if err != nil {
				return runError{err}
			}
			if trace {
				printTrace(cmd.ErrOrStderr(), exit)
			}
			return ended(cmd, exit)
		},
	}
	o.flags(cmd)
	j.flags(cmd)
	cmd.Flags().BoolVarP(&j.input, "interactive", "i", false, "pass input on, which is done without --tty anyway")
	cmd.Flags().BoolVar(&trace, "trace", false, "print the steps of the start, and when each was done, to stderr at the end")
	return cmd
}

// run makes a container, joins the streams, starts the container, and removes it if the start
// fails.
func (j *joining) run(cmd *cobra.Command, cl *client.Client, req api.ContainerRequest) error {
	if err := j.check(cmd, api.Container{Stdin: req.Stdin, TTY: req.TTY}); err != nil {
		return err
	}
	box, err := cl.CreateContainer(cmd.Context(), req)
	if err != nil {
		return runError{err}
	}
	started := false
	j.joined = func() error {
		err := cl.StartContainer(cmd.Context(), box.ID)
		started = err == nil
		return err
	}
	j.interrupt = func(ctx context.Context) error { return cl.Kill(ctx, box.ID) }
	err = j.join(cmd, cl, *box)
	if !started {
		// If the engine could not start the container, it has removed the container already.
		_ = cl.RemoveContainer(cmd.Context(), box.ID, client.RemoveOptions{Force: true})
	}
	return err
}

// ended passes on the exit status of a command.
func ended(cmd *cobra.Command, exit api.Exit) error {
	if exit.OOMKilled {
		fmt.Fprintln(cmd.ErrOrStderr(), "fre: the memory limit killed it")
	}
	if status := exitStatus(exit); status != 0 {
		return silentExitError(status)
	}
	return nil
}

// printTrace prints the steps of a start as a table: the time at the end of each step and the time
// since the step before.
func printTrace(w io.Writer, exit api.Exit) {
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s start\tdone at µs\ttook µs\t\n", exit.Start)
	before := int64(0)
	for _, step := range exit.Trace {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t\n", step.Name, float64(step.DoneNanos)/1e3, float64(step.DoneNanos-before)/1e3)
		before = step.DoneNanos
	}
	_ = t.Flush()
}

// runError has separate exit codes, which differ from the command's.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

func (e runError) code() int {
	var wire *api.Error
	if errors.As(e.error, &wire) {
		switch wire.Code { //nolint:exhaustive // the few with a status of their own
		case api.CodeCommandNotFound:
			return exitRunNotFound
		case api.CodeCommandNotExec:
			return exitRunNotExec
		default:
		}
	}
	return exitRunEngine
}
