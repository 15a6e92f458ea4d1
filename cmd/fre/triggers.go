package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/command"
)

func triggersCommand(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "triggers", Short: "List the triggers of functions", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Functions().Triggers(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), l, all, func(t api.Trigger) string { return t.Function + "/" + t.Name }, []column[api.Trigger]{
				{"FUNCTION", func(t api.Trigger) string { return t.Function }},
				{"NAME", func(t api.Trigger) string { return t.Name }},
				{"KIND", func(t api.Trigger) string { return t.Kind }},
				{"DETAIL", func(t api.Trigger) string { return t.Detail }},
				{"NEXT", func(t api.Trigger) string {
					if t.Next == nil {
						return ""
					}
					return t.Next.Format(time.RFC3339)
				}},
			})
		},
	}
	l.flags(cmd, "FUNCTION/NAME")
	return cmd
}
