package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
)

func (c *cli) debugCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "debug", Short: "Look into the engine's own program"})
	cmd.AddCommand(c.profileCommand(), c.syscallsCommand(), c.leaksCommand())
	return cmd
}

// profileKinds are the supported profiles, in the order of --help.
var profileKinds = []string{"cpu", "heap", "trace", "goroutine", "mutex"}

func (c *cli) profileCommand() *cobra.Command {
	var out string
	var seconds float64
	cmd := &cobra.Command{
		Use: "profile " + strings.Join(profileKinds, "|"), Short: "Fetch a profile of the engine's program",
		Long: `Fetch a profile of the engine's own program over the control socket, while it
works:

  cpu        what it computes, for --seconds
  heap       what memory is in use, and by whom
  trace      every event of Go's scheduler, for --seconds
  goroutine  where every goroutine is
  mutex      who waits for whom, for --seconds

"go tool pprof FILE" reads it, "go tool trace FILE" a trace. What runs inside of
sandboxes is in none of them. One profile is taken at a time.`,
		Args: args(cobra.ExactArgs(1)), ValidArgs: profileKinds,
		RunE: interruptible(func(cmd *cobra.Command, args []string) error {
			kind := args[0]
			path, tool := "fre-"+kind+".pprof", "pprof"
			if kind == "trace" {
				path, tool = "fre-trace.out", "trace"
			}
			if out != "" {
				path = out
			}
			cl := c.client()
			defer cl.Close()
			d := time.Duration(seconds * float64(time.Second))
			if path == "-" {
				return cl.Profile(cmd.Context(), kind, d, cmd.OutOrStdout())
			}
			err := writeWhole(path, 0o600, func(w io.Writer) error { return cl.Profile(cmd.Context(), kind, d, w) })
			if err == nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "go tool %s %s\n", tool, path)
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&out, "output", "o", "", "`file` to write, - for stdout (default fre-KIND.pprof, fre-trace.out)")
	f.Float64Var(&seconds, "seconds", 10, "how long, for cpu, trace and mutex")
	return cmd
}

// syscallCount is a row of fre debug syscalls, for --format.
type syscallCount struct {
	api.Syscall
	PerCall float64 `json:"per_call,omitempty"` // for each repetition of --call
}

func (c *cli) syscallsCommand() *cobra.Command {
	var l listing
	var call string
	var repeat int
	var seconds float64
	cmd := &cobra.Command{
		Use: "syscalls", Short: "Count the engine's system calls",
		Long: `Count the system calls of the engine's own program, by name: while a call of
its API is made again and again, which tells what one costs, or for a time.

  fre debug syscalls --call 'GET /v1/sandboxes?all=true&size=true' --repeat 100

The call is made once before, so that its connection is there. Whatever else the
engine does meanwhile is counted, too. The kernel's own trace events count
(tracefs, CONFIG_FTRACE_SYSCALLS, as distributions have it); the engine has to
be in the host's own pid namespace. Elsewhere strace -f -c -p PID counts, at a
hundred times the cost.`,
		Args: args(cobra.NoArgs),
		RunE: interruptible(func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			during := func() error { return pause(cmd.Context(), time.Duration(seconds*float64(time.Second))) }
			if call == "" {
				repeat = 0
			} else {
				method, target, ok := strings.Cut(call, " ")
				if !ok || !strings.HasPrefix(target, "/") || repeat < 1 {
					return usageError{fmt.Errorf("--call %q --repeat %d: give a method and a path, such as 'GET /v1/images', and how often", call, repeat)}
				}
				once := func() error { return cl.Call(cmd.Context(), method, target) }
				if err := once(); err != nil {
					return err
				}
				during = func() error {
					for range repeat {
						if err := once(); err != nil {
							return err
						}
					}
					return nil
				}
			}
			counts, err := cl.CountSyscalls(cmd.Context(), during)
			if err != nil {
				return err
			}
			var all api.Syscall
			items := make([]syscallCount, 0, len(counts)+1)
			for _, n := range counts {
				all.Calls += n.Calls
				items = append(items, syscallCount{Syscall: n})
			}
			all.Name = "(all)"
			items = append(items, syscallCount{Syscall: all})
			columns := []column[syscallCount]{
				{"SYSCALL", func(n syscallCount) string { return n.Name }},
				{"CALLS", func(n syscallCount) string { return strconv.FormatInt(n.Calls, 10) }},
			}
			if repeat > 0 {
				for i := range items {
					items[i].PerCall = float64(items[i].Calls) / float64(repeat)
				}
				columns = append(columns, column[syscallCount]{"PER CALL", func(n syscallCount) string { return strconv.FormatFloat(n.PerCall, 'f', 2, 64) }})
			}
			return show(cmd.OutOrStdout(), l, items, func(n syscallCount) string { return n.Name }, columns)
		}),
	}
	l.flags(cmd, "")
	f := cmd.Flags()
	f.StringVar(&call, "call", "", "method and path of the `call` to make, without a body")
	f.IntVar(&repeat, "repeat", 100, "how often it is made")
	f.Float64Var(&seconds, "seconds", 5, "how long to count, without --call")
	return cmd
}

func (c *cli) leaksCommand() *cobra.Command {
	var l listing
	var stacks bool
	cmd := &cobra.Command{
		Use: "leaks", Short: "Show what the engine's program holds",
		Long: `Show what the engine's own program holds now: buffers that are lent, by size,
open files by kind, memory, goroutines, mounts, cgroups (in use and kept ready),
sandboxes. What grows from one call to the next, without more work, is a leak.

--stacks shows where the buffers were asked for, of one in 64.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			leaks, err := cl.Leaks(cmd.Context())
			if err != nil {
				return err
			}
			if stacks {
				for _, s := range leaks.Stacks {
					fmt.Fprintf(cmd.OutOrStdout(), "%d\n\t%s\n", s.Count, strings.Join(s.Frames, "\n\t"))
				}
				return nil
			}
			return show(cmd.OutOrStdout(), l, leaks.Holdings, nil, []column[api.Holding]{
				{"KIND", func(h api.Holding) string { return h.Kind }},
				{"NAME", func(h api.Holding) string { return h.Name }},
				{"COUNT", func(h api.Holding) string { return strconv.FormatInt(h.Count, 10) }},
				{"SIZE", func(h api.Holding) string {
					if h.Bytes == 0 {
						return ""
					}
					return size(h.Bytes)
				}},
			})
		},
	}
	l.flags(cmd, "")
	cmd.Flags().BoolVar(&stacks, "stacks", false, "where the buffers were asked for")
	return cmd
}

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
