package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

// queueCommands are the subcommands of fre events for asynchronous events.
func queueCommands(c *cli) []*cobra.Command {
	return []*cobra.Command{queueListCommand(c), queueShowCommand(c), queueReplayCommand(c), queueDiscardCommand(c), queueTailCommand(c)}
}

func queueFlags(cmd *cobra.Command, f *client.QueueFilter) {
	cmd.Flags().StringVar(&f.Function, "function", "", "only events of this function")
	cmd.Flags().StringVar(&f.Tenant, "tenant", "", "only events of this tenant")
	cmd.Flags().StringSliceVar(&f.States, "state", nil, "only events in these states: queued, running, waiting, done, dead")
}

func queueListCommand(c *cli) *cobra.Command {
	var f client.QueueFilter
	var l listing
	cmd := &cobra.Command{
		Use: "ls", Short: "List unfinished asynchronous events and dead letters", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Queue().List(cmd.Context(), f)
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), l, all, func(e api.QueuedEvent) string { return e.ID }, []column[api.QueuedEvent]{
				{"ID", func(e api.QueuedEvent) string { return e.ID }},
				{"FUNCTION", func(e api.QueuedEvent) string { return e.Function }},
				{"STATE", func(e api.QueuedEvent) string { return e.State }},
				{"PRIORITY", func(e api.QueuedEvent) string { return e.Priority }},
				{"ATTEMPTS", func(e api.QueuedEvent) string { return strconv.Itoa(e.Attempts) }},
				{"ACCEPTED", func(e api.QueuedEvent) string { return e.Accepted.Format(time.RFC3339) }},
				{"ERROR", func(e api.QueuedEvent) string { return e.Error }},
			})
		},
	}
	queueFlags(cmd, &f)
	cmd.Flags().IntVar(&f.Limit, "limit", 1000, "maximum number of events; the newest events are listed")
	l.flags(cmd, "ids")
	return cmd
}

func queueShowCommand(c *cli) *cobra.Command {
	var format string
	var body bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show an asynchronous event, with the result of a finished event", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			cl := c.client()
			defer cl.Close()
			e, err := cl.Queue().Get(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			switch {
			case body:
				_, err := out.Write(e.Body)
				return err
			case format != "":
				return formatEach(out, format, []api.QueuedEventDetails{e})
			}
			line := func(name, value string) {
				if value != "" {
					fmt.Fprintf(out, "%-10s %s\n", name, command.Printable(value))
				}
			}
			line("id", e.ID)
			line("function", e.Function)
			line("state", e.State)
			line("source", e.Source)
			line("priority", e.Priority)
			line("accepted", e.Accepted.Format(time.RFC3339Nano))
			line("changed", e.Changed.Format(time.RFC3339Nano))
			line("attempts", strconv.Itoa(e.Attempts))
			if e.Status != 0 {
				line("status", strconv.Itoa(e.Status))
			}
			line("error", e.Error)
			line("callback", e.Callback)
			what := "event"
			if e.Result {
				what = "result"
			}
			line(what, fmt.Sprintf("%d bytes: fre events show --body %s", e.Size, e.ID))
			return nil
		},
	}
	cmd.Flags().BoolVar(&body, "body", false, "print only the body, at most 1 MiB: of the result if the event is done, else of the event")
	cmd.Flags().StringVar(&format, "format", "", "`template` for the event, as in fre images")
	return cmd
}

func queueReplayCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "replay ID...", Short: "Put dead letters back into their queue", Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			return eachEvent(cmd, ids, cl.Queue().Replay)
		},
	}
}

func queueDiscardCommand(c *cli) *cobra.Command {
	f := client.QueueFilter{States: []string{"dead"}, Limit: 100_000}
	cmd := &cobra.Command{
		Use: "discard [ID...]", Short: "Remove dead letters",
		Long: `Remove dead letters by their ids, or all dead letters of a function by --function. A
removed dead letter cannot be replayed. fre prints the ids of the removed dead letters.`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if (len(ids) > 0) == (f.Function != "") {
				return command.Usage(errors.New("give either ids of dead letters or --function NAME; fre events ls --state dead lists the ids"))
			}
			cl := c.client()
			defer cl.Close()
			if f.Function != "" {
				letters, err := cl.Queue().List(cmd.Context(), f)
				if err != nil {
					return err
				}
				for _, e := range letters {
					ids = append(ids, e.ID)
				}
			}
			return eachEvent(cmd, ids, cl.Queue().Discard)
		},
	}
	cmd.Flags().StringVar(&f.Function, "function", "", "remove all dead letters of this function")
	_ = cmd.RegisterFlagCompletionFunc("function", completeFunctions(c)) // fails only for an unknown flag
	return cmd
}

// eachEvent calls do for each event and prints the ids of successes.
func eachEvent(cmd *cobra.Command, ids []string, do func(context.Context, string) error) error {
	var errs []error
	for _, id := range ids {
		if err := do(cmd.Context(), id); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
			continue
		}
		fmt.Fprintln(cmd.OutOrStdout(), id)
	}
	return errors.Join(errs...)
}

func queueTailCommand(c *cli) *cobra.Command {
	var f client.QueueFilter
	var format string
	cmd := &cobra.Command{
		Use: "tail", Short: "Print state changes of asynchronous events", Args: command.Args(cobra.NoArgs),
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			out := cmd.OutOrStdout()
			return cl.Queue().Tail(cmd.Context(), f, func(e api.QueuedEvent) error {
				if format != "" {
					return formatEach(out, format, []api.QueuedEvent{e})
				}
				line := fmt.Sprintf("%s %s %s %s", e.Changed.Format(time.RFC3339Nano), e.ID, e.Function, e.State)
				if e.Error != "" {
					line += " " + e.Error
				}
				_, err := fmt.Fprintln(out, command.Printable(line))
				return err
			})
		}),
	}
	queueFlags(cmd, &f)
	cmd.Flags().StringVar(&format, "format", "", "`template` for each line, as in fre images")
	return cmd
}
