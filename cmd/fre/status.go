package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/command"
)

// normalState is the api.Status.State of a healthy engine.
const normalState = "normal"

func statusCommand(c *cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "status", Short: "Show the engine's state and load",
		Long: `Show the engine's state and load:

    the state, its reason and its age
    running events; events that wait for the engine or for an instance of their function
    the busiest functions
    memory for bodies, memory for connections
    live sandboxes, parked sandboxes and cgroups

The exit code is 0 if the state is normal, otherwise 6. In the states degraded, probing and
recovering the engine refuses all or some events that need memory for bodies
(docs/configuration.md). The last state is stopping. Full queues do not change the state.`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			s, err := cl.Status(cmd.Context())
			if err != nil {
				return err
			}
			if format != "" {
				err = formatEach(cmd.OutOrStdout(), format, []api.Status{s})
			} else {
				err = showStatus(cmd.OutOrStdout(), s, time.Now())
			}
			if err == nil && s.State != normalState {
				err = silentExitError(exitNotNormal)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "`template` for the status: 'json', or Go's text/template such as '{{.State}} {{.Events.Running}}'")
	return cmd
}

// showStatus prints the status for people.
func showStatus(w io.Writer, s api.Status, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	because := ""
	if s.Reason != "" {
		because = ", because of " + map[string]string{"memory": "too little memory for bodies", "waits": "long waits for memory"}[s.Reason]
	}
	line("State", "%s%s, since %s", s.State, because, ago(s.Since, now))
	line("Engine", "%s, started %s", s.Version.Version, ago(s.Started, now))
	e := s.Events
	line("Events", "%d running, at most %d; %d wait for the engine, %d for their function", e.Running, e.Limit, e.Waiting, e.Queued)
	memory := func(name string, b api.BufferStatus) {
		pressed := ""
		if b.Pressed {
			pressed = ", under pressure until at most " + size(b.Low) + " are in use"
		}
		line(name, "%s of %s in use, %s at most so far%s", size(b.Held), size(b.Bytes), size(b.Peak), pressed)
	}
	memory("Buffers", s.Buffers)
	memory("Connections", s.Connections)
	x := s.Sandboxes
	line("Sandboxes", "%d live, for %d functions and other uses; parked: %d bare, %d attached; ready: %d cgroups", x.Live, e.Functions, x.Bare, x.Attached, x.Cgroups)
	if err := t.Flush(); err != nil || len(s.Functions) == 0 {
		return err
	}
	fmt.Fprintln(w)
	number := func(of func(api.FunctionLoad) int) func(api.FunctionLoad) string {
		return func(f api.FunctionLoad) string { return strconv.Itoa(of(f)) }
	}
	return show(w, listing{}, s.Functions, nil, []column[api.FunctionLoad]{
		{"FUNCTION", func(f api.FunctionLoad) string { return f.Name }},
		{"INSTANCES", number(func(f api.FunctionLoad) int { return f.Instances })},
		{"BUSY", number(func(f api.FunctionLoad) int { return f.Busy })},
		{"WAITING", number(func(f api.FunctionLoad) int { return f.Waiting })},
		{"QUEUED", number(func(f api.FunctionLoad) int { return f.Queued })},
	})
}
