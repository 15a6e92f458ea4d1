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
	"github.com/fre-engine/fre/internal/command"
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
	f.StringVar(&o.req.Name, "name", "", "`name` of the container (default a generated name)")
	f.StringVar(&o.entrypoint, "entrypoint", "", "`program` before the command, instead of the image's entrypoint; empty for none")
	f.StringVarP(&o.req.Dir, "workdir", "w", "", "working directory (default the image's)")
	f.StringVarP(&o.req.User, "user", "u", "", "run as `USER[:GROUP]`: names from the image, or numbers (default the image's)")
	f.StringArrayVar(&o.req.Groups, "group-add", nil, "add the user to this `GROUP`; may be repeated")
	f.StringArrayVar(&o.req.CapDrop, "cap-drop", nil, "take this `CAPABILITY` from root, or ALL; may be repeated")
	f.StringArrayVar(&o.req.CapAdd, "cap-add", nil, "keep this `CAPABILITY` despite --cap-drop; may be repeated")
	f.StringVar(&o.req.Network, "network", "", "none, egress or host (default none)")
	f.StringVarP(&o.req.Memory, "memory", "m", "", "memory limit, such as 512MiB (default a quarter of the host's memory)")
	f.Float64Var(&o.cpus, "cpus", 0, "limit of CPUs, such as 1.5 (default all)")
	f.Int64Var(&o.req.Pids, "pids", 0, "limit of processes and threads (default 4096)")
	f.StringVar(&o.req.Scratch, "scratch", "", "size limit of the files written to the root, such as 1GiB (default 10GiB if the host can enforce a limit)")
	f.BoolVar(&o.req.ReadOnly, "read-only", false, "make the root read-only")
	f.StringVar(&o.req.Work, "work", "", "give access to the tenant's /work: ro or rw")
	f.BoolVarP(&o.req.TTY, "tty", "t", false, "give the container a terminal; with --interactive, attached clients type into the terminal")
	cmd.Flags().AddFlagSet(f)
	cmd.Flags().StringVar(&o.req.Tenant, "tenant", "", "`tenant` whose user ids and /work the sandbox has (default \"default\")")
	cmd.Flags().StringArrayVarP(&o.req.Env, "env", "e", nil, "set the environment variable `KEY=VALUE`; may be repeated")
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

func runCommand(c *cli) *cobra.Command {
	var o containerFlags
	var j joining
	var trace bool
	cmd := &cobra.Command{
		Use:   "run IMAGE [-- COMMAND [ARG...]]",
		Short: "Run a command in a new sandbox",
		Long: `Run a command in a new sandbox with the image as its root. fre passes on input, output and
exit status (fre help exit-codes). Ctrl-C kills the command.

With a flag of fre create other than --env, --tenant and --interactive, for example --tty,
--name, --user or a limit, the sandbox is a container, removed at its end. A container runs
the image's own command if you give no command, and may write to /work unless --work is ro.

With --tty and --interactive, your terminal passes every key to the container's terminal:
Ctrl-C goes to the programs inside, and Ctrl-P Ctrl-Q detaches. To attach again, use fre
attach.`,
		Example: `  fre run debian:12 -- cat /etc/os-release
  fre run -i -t debian:12`,
		Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeImageFirst(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := o.request(args)
			cl := c.client()
			defer cl.Close()
			switch {
			case o.given() && trace:
				return command.Usage(errors.New("--trace works only without a container: with --trace give only --env and --tenant"))
			case o.given():
				if !o.set.Changed("work") {
					req.Work = "rw"
				}
				j.input = j.input || !req.TTY
				req.Stdin, req.AutoRemove = j.input, true
				return j.run(cmd, cl, req)
			case len(req.Args) == 0:
				return command.Usage(errors.New("name a command: fre run IMAGE -- COMMAND"))
			}
			kill, stop := onInterrupt()
			defer stop()
			plain := api.RunRequest{Image: req.Image, Args: req.Args, Env: req.Env, Tenant: req.Tenant, Trace: trace}
			exit, err := cl.Sandboxes().Run(cmd.Context(), plain, client.RunIO{Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(), Kill: kill})
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
	cmd.Flags().BoolVarP(&j.input, "interactive", "i", false, "pass standard input to the command; without --tty fre always does")
	cmd.Flags().BoolVar(&trace, "trace", false, "at the end, print the steps of the start with their times to standard error")
	return cmd
}

// run makes a container, joins the streams, starts the container, and removes it if the start
// fails.
func (j *joining) run(cmd *cobra.Command, cl *client.Client, req api.ContainerRequest) error {
	if err := j.check(cmd, api.Container{Stdin: req.Stdin, TTY: req.TTY}); err != nil {
		return err
	}
	box, err := cl.Containers().Create(cmd.Context(), req)
	if err != nil {
		return runError{err}
	}
	started := false
	j.joined = func() error {
		err := cl.Containers().Start(cmd.Context(), box.ID)
		started = err == nil
		return err
	}
	j.interrupt = func(ctx context.Context) error { return cl.Sandboxes().Kill(ctx, box.ID) }
	err = j.join(cmd, cl, *box)
	if !started {
		// If the engine could not start the container, it has removed the container already.
		_ = cl.Containers().Remove(cmd.Context(), box.ID, client.RemoveOptions{Force: true})
	}
	return err
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

// imageAndCommand splits the arguments IMAGE [--] [COMMAND [ARG...]]. pflag leaves dashes behind
// the first argument in the list.
func imageAndCommand(args []string) (image string, command []string) {
	command = args[1:]
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	return args[0], command
}
