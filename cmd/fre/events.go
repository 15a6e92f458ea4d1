package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

func (c *cli) eventsCommand() *cobra.Command {
	o := client.EventOptions{}
	var since, format string
	var once bool
	cmd := &cobra.Command{
		Use: "events", Short: "Print what changes in the lists of images, functions and sandboxes", Args: args(cobra.NoArgs),
		RunE: interruptible(func(cmd *cobra.Command, _ []string) error {
			o.Follow = !once
			if once && since == "" { // all remembered changes
				since = time.Unix(0, 0).UTC().Format(time.RFC3339)
			}
			if since != "" {
				o.Since = since
				if _, err := strconv.ParseUint(since, 10, 64); err != nil {
					at, err := flagTime("--since", since, time.Now())
					if err != nil {
						return usageError{fmt.Errorf("%w, nor a generation", err)}
					}
					o.Since = at.UTC().Format(time.RFC3339Nano)
				}
			}
			cl := c.client()
			defer cl.Close()
			out := cmd.OutOrStdout()
			return cl.Events(cmd.Context(), o, func(ch api.Change) error {
				if format != "" {
					return formatEach(out, format, []api.Change{ch})
				}
				_, err := fmt.Fprintln(out, changeLine(ch))
				return err
			})
		}),
	}
	cmd.Long = `Print what changes in the lists of images, functions and sandboxes, and what clients do
with them: signals, pulls, prunes.

Its subcommands are about asynchronous events, those that came by /async-function or
a trigger: what waits, what failed for good, what became of one.`
	cmd.AddCommand(c.queueCommands()...)
	f := cmd.Flags()
	f.StringVar(&since, "since", "", "begin with those after this generation, or `TIME` (2026-01-31, RFC 3339) or duration ago (10m); default: from now on")
	f.BoolVar(&once, "no-follow", false, "end after those that are remembered")
	f.StringSliceVar(&o.Kinds, "kind", nil, "only these: image, function, sandbox, cache")
	f.StringSliceVar(&o.Actions, "action", nil, "only these: create, tag, untag, delete, pull, push, load, import, save; deploy, route, remove; start, kill, stop, exit, restart, attach, detach, resize, rename; prune")
	f.StringVar(&format, "format", "", "`template` for each line, as for fre images")
	return cmd
}

// changeLine formats a change for people: time, kind, action, id, name, attributes.
func changeLine(ch api.Change) string {
	fields := []string{ch.Time.Format(time.RFC3339Nano), ch.Kind, ch.Action, ch.ID}
	if ch.Name != "" && ch.Name != ch.ID {
		fields = append(fields, ch.Name)
	}
	if len(ch.Attributes) > 0 {
		var attributes []string
		for _, key := range slices.Sorted(maps.Keys(ch.Attributes)) {
			attributes = append(attributes, key+"="+ch.Attributes[key])
		}
		fields = append(fields, "("+strings.Join(attributes, ", ")+")")
	}
	return printable(strings.Join(fields, " "))
}
