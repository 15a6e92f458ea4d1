package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func auditCommand(c *cli) *cobra.Command {
	var o client.AuditOptions
	var since, format string
	cmd := &cobra.Command{
		Use: "audit", Short: "Print the audit log of control actions", Args: command.Args(cobra.NoArgs),
		Long: `Print the audit log of control actions, oldest entry first. Each entry has the time, the
result, the action, the object, the user, the tenant and the client's address.

Reading the log needs the scope admin. A tenant's token sees only the actions of this
tenant's tokens. See docs/tenants.md.`,
		Example: `  fre audit --since 24h --action DELETE
  fre audit -n 20 --tenant acme --action secrets,tokens`,
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
			if since != "" {
				var err error
				if o.Since, err = flagTime("--since", since, time.Now()); err != nil {
					return err
				}
			}
			cl := c.client()
			defer cl.Close()
			out := cmd.OutOrStdout()
			return cl.Audit(cmd.Context(), o, func(e api.AuditEntry) error {
				if format != "" {
					return formatEach(out, format, []api.AuditEntry{e})
				}
				_, err := fmt.Fprintln(out, auditText(e))
				return err
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&since, "since", "", "print only entries since this `TIME` (2026-01-31, RFC 3339) or since a duration ago (10m)")
	f.IntVarP(&o.Tail, "tail", "n", 1000, "print only the last `ENTRIES`, at most 10000")
	f.StringVar(&o.Tenant, "tenant", "", "print only the actions of this tenant's tokens; * for root and tokens of all tenants")
	f.StringSliceVar(&o.Actions, "action", nil, "print only actions whose name contains one of these words, such as DELETE, secrets, docker, authenticate")
	f.BoolVarP(&o.Follow, "follow", "f", false, "continue with new entries until Ctrl-C")
	f.StringVar(&format, "format", "", "`template` for each entry, as in fre images")
	return cmd
}

// auditText formats an entry for people.
func auditText(e api.AuditEntry) string {
	var line strings.Builder
	fmt.Fprintf(&line, "%s %s %s", e.Time.Format(time.RFC3339Nano), e.Result, e.Action)
	for _, f := range []struct{ name, value string }{{"on", e.On}, {"who", e.Who}, {"tenant", e.Tenant}, {"from", e.Client}, {"reason", e.Reason}} {
		if f.value != "" {
			fmt.Fprintf(&line, " %s=%q", f.name, f.value)
		}
	}
	if e.Missed > 0 {
		fmt.Fprintf(&line, " (%d earlier entries could not be written)", e.Missed)
	}
	return command.Printable(line.String())
}
