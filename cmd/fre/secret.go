package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func secretCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{
		Use: "secret", Short: "Work with tenants' secrets",
		Long: `Work with the secrets of tenants. If a template names a secret (secrets: [NAME]), the
function finds the value in the file /run/secrets/NAME, in memory. On disk the engine
seals all secrets. See docs/tenants.md.

The commands read values from standard input or a file, never from the command line,
because all users of the host can see command lines.

In a cluster, all nodes share the secrets if cluster.key_file names a common key.
Otherwise fre secret names the only node with the secret.`,
		Example: `  fre secret create stripe-key --tenant acme < key`,
	})

	cmd.AddCommand(secretList(c), secretPut(c, false), secretPut(c, true), secretRemove(c), secretRotate(c))
	return cmd
}

func tenantFlag(cmd *cobra.Command, tenant *string) {
	cmd.Flags().StringVar(tenant, "tenant", "default", "`tenant` that owns the secret")
}

func secretList(c *cli) *cobra.Command {
	var l listing
	var tenant string
	cmd := &cobra.Command{
		Use: "ls", Short: "List secrets, without their values", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Secrets().List(cmd.Context(), tenant)
			if err != nil {
				return err
			}
			now := time.Now()
			columns := []column[api.Secret]{
				{"NAME", func(s api.Secret) string { return s.Name }},
				{"BYTES", func(s api.Secret) string { return count(s.Bytes) }},
				{"UPDATED", func(s api.Secret) string { return ago(s.Updated, now) }},
			}
			if slices.ContainsFunc(all, func(s api.Secret) bool { return s.Node != "" }) {
				columns = append(columns, column[api.Secret]{"ONLY AT", func(s api.Secret) string { return s.Node }})
			}
			return show(cmd.OutOrStdout(), l, all, func(s api.Secret) string { return s.Name }, columns)
		},
	}
	tenantFlag(cmd, &tenant)
	l.flags(cmd, "names")
	return cmd
}

// maxSecret is above the engine's limit, for the engine to report the limit.
const maxSecret = 1 << 20

func secretPut(c *cli, update bool) *cobra.Command {
	var tenant, file string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a secret from standard input or a file", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			in := cmd.InOrStdin()
			if file != "" {
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			} else if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
				return command.Usage(errors.New("standard input is a terminal, and would show the value: give --from-file FILE, or < FILE"))
			}
			value, err := io.ReadAll(io.LimitReader(in, maxSecret))
			if err != nil {
				return fmt.Errorf("read value: %w", err)
			}
			defer clear(value)
			cl := c.client()
			defer cl.Close()
			if err := cl.Secrets().Put(cmd.Context(), tenant, names[0], value, client.PutOptions{Update: update}); err != nil {
				return err
			}
			if err := noteOwn(cmd, cl, tenant, names[0]); err != nil {
				return err
			}
			if update {
				fmt.Fprintf(cmd.ErrOrStderr(), "new instances have the new value; running instances keep the old value until fre stop or a new fre deploy\n")
			}
			fmt.Fprintln(cmd.OutOrStdout(), names[0])
			return nil
		},
	}
	if update {
		cmd.Use, cmd.Short = "update NAME", "Replace a secret's value for new instances"
	}
	tenantFlag(cmd, &tenant)
	cmd.Flags().StringVar(&file, "from-file", "", "`file` with the value, to the last byte (default standard input)")
	return cmd
}

// noteOwn warns if only one of several nodes has the secret.
func noteOwn(cmd *cobra.Command, cl *client.Client, tenant, name string) error {
	all, err := cl.Secrets().List(cmd.Context(), tenant)
	if err != nil {
		return fmt.Errorf("the secret is stored, but list secrets: %w", err)
	}
	for _, s := range all {
		if s.Name == name && s.Node != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "only node %s has the secret: store the secret on the other nodes too, or give all nodes a common key (cluster.key_file)\n", s.Node)
		}
	}
	return nil
}

func secretRemove(c *cli) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove secrets that no function uses", Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			cl := c.client()
			defer cl.Close()
			return each(names, func(name string) error {
				err := cl.Secrets().Remove(cmd.Context(), tenant, name)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
	tenantFlag(cmd, &tenant)
	return cmd
}

func secretRotate(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rotate-key", Short: "Seal all secrets with a new key, and forget the old key", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			return cl.Secrets().RotateKey(cmd.Context())
		},
	}
}
