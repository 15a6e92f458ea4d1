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
	"github.com/fre-engine/fre/internal/command"
)

func eventsCommand(c *cli) *cobra.Command {
	o := client.EventOptions{}
	var since, format string
	var once bool
	cmd := &cobra.Command{
		Use: "events", Short: "Print changes of images, functions and sandboxes", Args: command.Args(cobra.NoArgs),
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			o.Follow = !once
			if once && since == "" {
				since = time.Unix(0, 0).UTC().Format(time.RFC3339)
			}
			if since != "" {
				o.Since = since
				if _, err := strconv.ParseUint(since, 10, 64); err != nil {
					at, err := flagTime("--since", since, time.Now())
					if err != nil {
						return command.Usage(fmt.Errorf("%w, nor a generation", err))
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
	cmd.Long = `Print changes of images, functions and sandboxes, and the actions of clients on them:
signals, pulls, prunes.

The subcommands work with asynchronous events, from /async-function or a trigger: list
waiting events and dead letters, show an event and its result, replay dead letters.`
	cmd.AddCommand(queueCommands(c)...)
	f := cmd.Flags()
	f.StringVar(&since, "since", "", "start after this generation, at this `TIME` (2026-01-31, RFC 3339) or a duration ago (10m) (default now)")
	f.BoolVar(&once, "no-follow", false, "print the remembered changes and end")
	f.StringSliceVar(&o.Kinds, "kind", nil, "print only changes of these kinds: image, function, sandbox, cache")
	f.StringSliceVar(&o.Actions, "action", nil, "print only these actions: create, tag, untag, delete, pull, push, load, import, save; deploy, route, remove; start, kill, stop, exit, restart, attach, detach, resize, rename; prune")
	f.StringVar(&format, "format", "", "`template` for each line, as in fre images")
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
	return command.Printable(strings.Join(fields, " "))
}
