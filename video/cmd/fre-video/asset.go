package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/internal/command"
	"github.com/fre-engine/fre/video/client"
)

func lsCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "ls", Short: "List the assets, newest first", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return command.Usage(fmt.Errorf("--format %q is neither table nor json", format))
			}
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			all, err := c.Assets(cmd.Context())
			if err != nil {
				return explain(cmd.Context(), err)
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			return printAssets(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().StringVar(&format, "format", "table", "output `format`: table or json")
	return cmd
}

// printAssets prints a table of assets.
func printAssets(to io.Writer, all []client.Asset) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tSTATE\tSECONDS\tCREATED")
	for _, a := range all {
		state := string(a.State)
		if a.Jobs != nil && a.Jobs.Waits != "" {
			state += " (waiting)"
		}
		if a.Jobs != nil && a.Jobs.All > 0 {
			state += fmt.Sprintf(" %d/%d", a.Jobs.Done, a.Jobs.All)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%s\n", a.ID, a.Name, state, a.Duration, a.Created.Local().Format(time.DateTime))
	}
	return w.Flush()
}

func inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use: "inspect ID", Short: "Print an asset as JSON", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			a, err := c.Asset(cmd.Context(), args[0])
			if err != nil {
				return explain(cmd.Context(), err)
			}
			return printJSON(cmd.OutOrStdout(), a)
		},
	}
}

func rmCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID...", Short: "Remove assets and stop the work on them", Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			var failed []error
			for _, id := range args {
				if err := c.Remove(cmd.Context(), id); err != nil {
					failed = append(failed, explain(cmd.Context(), err))
					continue
				}
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return errors.Join(failed...)
		},
	}
}

func retryCommand() *cobra.Command {
	return &cobra.Command{
		Use: "retry ID", Short: "Work on a failed asset again from the beginning", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := connect()
			if err != nil {
				return err
			}
			defer c.Close()
			a, err := c.Retry(cmd.Context(), args[0])
			if err != nil {
				return explain(cmd.Context(), err)
			}
			return printJSON(cmd.OutOrStdout(), a)
		},
	}
}
