package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/command"
)

func templateCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{Use: "template", Short: "Work with templates (fret.yaml)"})
	cmd.AddCommand(
		&cobra.Command{
			Use: "schema", Short: "Print the JSON Schema of fret.yaml, for editors", Args: command.Args(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := cmd.OutOrStdout().Write(api.TemplateSchema)
				return err
			},
		},
		&cobra.Command{
			Use: "check DIR", Short: "Check a template without building it", Args: command.Args(cobra.ExactArgs(1)),
			RunE: func(cmd *cobra.Command, dirs []string) error {
				if err := isTemplate(dirs[0]); err != nil {
					return err
				}
				src, err := os.ReadFile(filepath.Join(dirs[0], api.TemplateFile))
				if err != nil {
					return err
				}
				cl := c.client()
				defer cl.Close()
				t, err := cl.CheckTemplate(cmd.Context(), src)
				if err != nil {
					return err
				}
				if t.Base == "" { // a pipeline, or a runtime with a base of its own
					fmt.Fprintf(cmd.OutOrStdout(), "%s:%s is well-formed\n", t.ID, t.Version)
					return nil
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s:%s on %s is well-formed\n", t.ID, t.Version, t.Base)
				return nil
			},
		},
	)
	return cmd
}
