package main

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func psCommand(c *cli) *cobra.Command {
	var l listing
	var o client.SandboxOptions
	cmd := &cobra.Command{
		Use: "ps", Short: "List sandboxes", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			boxes, err := cl.Sandboxes().List(cmd.Context(), o)
			if err != nil {
				return err
			}
			now := time.Now()
			columns := []column[api.Sandbox]{
				{"SANDBOX ID", func(b api.Sandbox) string { return l.shortID(b.ID) }},
				{"FUNCTION", func(b api.Sandbox) string { return cmp.Or(b.Function, b.Name) }},
				{"IMAGE", func(b api.Sandbox) string { return b.Image }},
				{"COMMAND", func(b api.Sandbox) string { return strconv.Quote(l.clip(b.Command, 24)) }},
				{"CREATED", func(b api.Sandbox) string { return ago(b.Created, now) }},
				{"STATUS", func(b api.Sandbox) string { return status(b, now) }},
			}
			if o.Size {
				columns = append(columns,
					column[api.Sandbox]{"SIZE", held(func(s *api.Size) string { return size(s.Bytes) })},
					column[api.Sandbox]{"FILES", held(func(s *api.Size) string { return strconv.FormatInt(s.Files, 10) })},
				)
			}
			if o.Stats {
				columns = append(columns,
					column[api.Sandbox]{"MEMORY", stat(func(s *api.Stats) string { return size(s.MemoryBytes) })},
					column[api.Sandbox]{"CPU", stat(func(s *api.Stats) string { return time.Duration(s.CPUNanos).Round(time.Millisecond).String() })},
				)
			}
			return show(cmd.OutOrStdout(), l, boxes, func(b api.Sandbox) string { return l.shortID(b.ID) }, columns)
		},
	}
	l.flags(cmd, "sandbox ids")
	cmd.Flags().BoolVarP(&o.All, "all", "a", false, "list ended sandboxes too")
	cmd.Flags().BoolVarP(&o.Size, "size", "s", false, "show the bytes and files in /tmp and the sandbox's other own file systems")
	cmd.Flags().BoolVar(&o.Stats, "stats", false, "show memory and CPU time")
	return cmd
}

func held(of func(*api.Size) string) func(api.Sandbox) string {
	return func(b api.Sandbox) string {
		if b.Size == nil {
			return "-"
		}
		return of(b.Size)
	}
}

func stat(of func(*api.Stats) string) func(api.Sandbox) string {
	return func(b api.Sandbox) string {
		if b.Stats == nil {
			return "-"
		}
		return of(b.Stats)
	}
}

func status(b api.Sandbox, now time.Time) string {
	if b.State == "created" {
		return "Created"
	}
	if b.Exit == nil {
		return "Up " + span(now.Sub(b.Created)) + " (" + b.State + ")"
	}
	how := "(" + strconv.Itoa(b.Exit.Code) + ")"
	switch {
	case b.Exit.OOMKilled:
		how = "(out of memory)"
	case b.Exit.Signal != 0:
		how = "(" + unix.SignalName(unix.Signal(b.Exit.Signal)) + ")"
	}
	if b.Ended == nil {
		return "Exited " + how
	}
	return "Exited " + how + " " + ago(*b.Ended, now)
}

func stopCommand(c *cli) *cobra.Command {
	grace := 10 * time.Second
	cmd := &cobra.Command{
		Use: "stop ID...", Short: "Stop sandboxes; kill them after a grace period", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeSandboxes(c),
		RunE: command.Interruptible(func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			return each(ids, func(id string) error {
				err := cl.Sandboxes().Stop(cmd.Context(), id, grace)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), id)
				}
				return err
			})
		}),
	}
	cmd.Flags().DurationVarP(&grace, "time", "t", grace, "grace period before the kill")
	return cmd
}

func killCommand(c *cli) *cobra.Command {
	var signal string
	cmd := &cobra.Command{
		Use: "kill ID...", Short: "Kill sandboxes at once, or send them a signal", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeSandboxes(c),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			return each(ids, func(id string) error {
				err := cl.Sandboxes().Signal(cmd.Context(), id, signal)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), id)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "KILL", "name or number of another signal; the sandbox's first process must have a handler for the signal")
	return cmd
}

func waitCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "wait ID...", Short: "Wait until sandboxes have ended, and print their exit codes", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeSandboxes(c),
		RunE: command.Interruptible(func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			return each(ids, func(id string) error {
				exit, err := cl.Sandboxes().Wait(cmd.Context(), id)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), exitStatus(exit))
				}
				return err
			})
		}),
	}
}
