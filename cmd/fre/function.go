package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/command"
)

func functionsCommand(c *cli) *cobra.Command {
	return functionList(c, "functions", "List the deployed functions")
}

func functionCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{Use: "function", Short: "Work with deployed functions"})
	cmd.AddCommand(functionList(c, "ls", "List functions"), functionRemove(c), functionInspect(c), functionRevisions(c), functionSplit(c), functionRollback(c), functionAlias(c))
	return cmd
}

func functionList(c *cli, use, short string) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: use, Short: short, Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			functions, err := cl.Functions().List(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			return show(cmd.OutOrStdout(), l, functions, func(f api.Function) string { return f.Name }, []column[api.Function]{
				{"NAME", func(f api.Function) string { return f.Name }},
				{"IMAGE", func(f api.Function) string { return f.ImageRef }},
				{"REVISION", func(f api.Function) string { return strconv.Itoa(f.Revision) }},
				{"BASE", func(f api.Function) string {
					if len(f.Pipeline) > 0 {
						return "pipeline"
					}
					return f.Base
				}},
				{"INSTANCES", func(f api.Function) string { return strconv.Itoa(f.Instances) }},
				{"BUSY", func(f api.Function) string { return strconv.Itoa(f.Busy) }},
				{"QUEUED", func(f api.Function) string { return strconv.Itoa(f.Queued) }},
				{"INVOCATIONS", func(f api.Function) string { return strconv.FormatUint(f.Invocations, 10) }},
				{"FAILURES", func(f api.Function) string { return strconv.FormatUint(f.Failures, 10) }},
				{"DEPLOYED", func(f api.Function) string { return ago(f.Deployed, now) }},
			})
		},
	}
	l.flags(cmd, "names")
	return cmd
}

func functionRemove(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Short: "Remove functions; their images stay", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeFunctions(c),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			return each(names, func(name string) error {
				err := cl.Functions().Remove(cmd.Context(), name)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
}

func functionInspect(c *cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "inspect NAME...", Short: "Show functions and their configuration", Args: command.Args(cobra.MinimumNArgs(1)), ValidArgsFunction: completeFunctions(c),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			found := []api.FunctionDetails{}
			err := each(names, func(name string) error {
				f, err := cl.Functions().Get(cmd.Context(), name)
				if err == nil {
					found = append(found, f)
				}
				return err
			})
			return errors.Join(inspect(cmd.OutOrStdout(), format, found), err)
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "`template` for each function, as in fre functions")
	return cmd
}
