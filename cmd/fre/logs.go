package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func logsCommand(c *cli) *cobra.Command {
	var (
		follow, times bool
		tail, since   string
		format        string
	)
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Print the output and the log of a function or container", Args: command.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeAny(completeFunctions(c), completeContainers(c)),
		RunE: command.Interruptible(func(cmd *cobra.Command, names []string) error {
			o := client.LogOptions{Tail: -1, Follow: follow}
			if tail != "all" {
				n, err := strconv.Atoi(tail)
				if err != nil || n < 0 {
					return command.Usage(fmt.Errorf("--tail: %q is not a number of lines, or all", tail))
				}
				o.Tail = n
			}
			if since != "" {
				var err error
				if o.Since, err = flagTime("--since", since, time.Now()); err != nil {
					return err
				}
			}
			cl := c.client()
			defer cl.Close()
			out := foreign(cmd.OutOrStdout())
			return cl.Functions().Logs(cmd.Context(), names[0], o, func(l api.LogLine) error {
				if format != "" {
					return formatEach(out, format, []api.LogLine{l})
				}
				prefix := ""
				if times {
					prefix = l.Time.Format(time.RFC3339Nano) + " "
				}
				_, err := fmt.Fprintf(out, "%s%s\n", prefix, l)
				return err
			})
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "continue with new lines until Ctrl-C")
	f.StringVarP(&tail, "tail", "n", "all", "print only the last `LINES`")
	f.StringVar(&since, "since", "", "print only lines since this `TIME` (2026-01-31, RFC 3339) or since a duration ago (10m)")
	f.BoolVarP(&times, "timestamps", "t", false, "print the time of each line")
	f.StringVar(&format, "format", "", "`template` for each line, as in fre images")
	return cmd
}
