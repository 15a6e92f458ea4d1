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
	"github.com/fre-engine/fre/internal/command"
)

func debugCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{Use: "debug", Short: "Inspect the engine's own process"})
	cmd.AddCommand(profileCommand(c), syscallsCommand(c), leaksCommand(c))
	return cmd
}

// profileKinds are the supported profiles, in the order of --help.
var profileKinds = []string{"cpu", "heap", "trace", "goroutine", "mutex"}

func profileCommand(c *cli) *cobra.Command {
	var out string
	var seconds float64
	cmd := &cobra.Command{
		Use: "profile " + strings.Join(profileKinds, "|"), Short: "Fetch a profile of the engine's process",
		Long: `Fetch a profile of the engine's own process over the control socket, while the engine
works:

    cpu        CPU time by function, during --seconds
    heap       memory in use, by allocating function
    trace      all events of Go's scheduler, during --seconds
    goroutine  the stack of every goroutine
    mutex      waits for locks, during --seconds

Read a profile with "go tool pprof FILE", a trace with "go tool trace FILE". Profiles do
not cover the programs in sandboxes. The engine takes one profile at a time.`,
		Args: command.Args(cobra.ExactArgs(1)), ValidArgs: profileKinds,
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
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
				return cl.Debug().Profile(cmd.Context(), kind, d, cmd.OutOrStdout())
			}
			err := writeWhole(path, 0o600, func(w io.Writer) error { return cl.Debug().Profile(cmd.Context(), kind, d, w) })
			if err == nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "go tool %s %s\n", tool, path)
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&out, "output", "o", "", "`file` to write, - for standard output (default fre-KIND.pprof or fre-trace.out)")
	f.Float64Var(&seconds, "seconds", 10, "duration of cpu, trace and mutex, in seconds")
	return cmd
}

// syscallCount is a row of fre debug syscalls, for --format.
type syscallCount struct {
	api.Syscall
	PerCall float64 `json:"per_call,omitempty"` // for each repetition of --call
}

func syscallsCommand(c *cli) *cobra.Command {
	var l listing
	var call string
	var repeat int
	var seconds float64
	cmd := &cobra.Command{
		Use: "syscalls", Short: "Count the engine's system calls",
		Long: `Count the system calls of the engine's own process, by name: for --seconds, or with --call
during repeated calls of the engine's API. The second form gives the system calls per
API call. fre makes one call before the count, to open the connection. The count includes
all other work of the engine during this time.

Counting uses the kernel's trace events (tracefs with CONFIG_FTRACE_SYSCALLS, which
distributions enable), and the engine must run in the host's pid namespace. On other
hosts use strace -f -c -p PID, at a hundred times the cost.`,
		Example: `  fre debug syscalls --call 'GET /v1/sandboxes?all=true&size=true' --repeat 100`,
		Args:    command.Args(cobra.NoArgs),
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			during := func() error { return pause(cmd.Context(), time.Duration(seconds*float64(time.Second))) }
			if call == "" {
				repeat = 0
			} else {
				method, target, ok := strings.Cut(call, " ")
				if !ok || !strings.HasPrefix(target, "/") || repeat < 1 {
					return command.Usage(fmt.Errorf("--call %q --repeat %d: give a method and a path, such as 'GET /v1/images', and at least one repetition", call, repeat))
				}
				once := func() error { return cl.Debug().Call(cmd.Context(), method, target) }
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
			counts, err := cl.Debug().CountSyscalls(cmd.Context(), during)
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
	f.StringVar(&call, "call", "", "API `call` to repeat: method and path, such as 'GET /v1/images', without a body")
	f.IntVar(&repeat, "repeat", 100, "number of calls")
	f.Float64Var(&seconds, "seconds", 5, "duration of the count in seconds, without --call")
	return cmd
}

func leaksCommand(c *cli) *cobra.Command {
	var l listing
	var stacks bool
	cmd := &cobra.Command{
		Use: "leaks", Short: "Show the resources of the engine's process",
		Long: `Show the resources that the engine's own process holds now: buffers by size, open
files by kind, memory, goroutines, mounts, cgroups (in use and kept ready) and sandboxes.
A resource that grows from call to call, without more work, is a leak.

--stacks shows the stacks that requested the buffers, for one buffer in 64.`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			leaks, err := cl.Debug().Leaks(cmd.Context())
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
	cmd.Flags().BoolVar(&stacks, "stacks", false, "show the stacks that requested the buffers in use")
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
