package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
)

func (c *cli) tokenCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "token", Short: "Work with tokens for the remote control API and the gateway",
		Long: `A token stands for a tenant, or for all, and for scopes: deploy, invoke, read, admin.
Its text is shown once; the engine keeps a hash. Clients send it as "Authorization:
Bearer TOKEN"; fre takes it from FRE_TOKEN, or the file FRE_TOKEN_FILE names, together
with FRE_HOST. (docs/tenants.md)`,
	})
	cmd.AddCommand(c.tokenList(), c.tokenCreate(), c.tokenRotate(), c.tokenRemove(), c.tokenWhoami())
	return cmd
}

func (c *cli) tokenList() *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "ls", Short: "List tokens, without their text", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Tokens(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			return show(cmd.OutOrStdout(), l, all, func(t api.Token) string { return t.ID }, []column[api.Token]{
				{"ID", func(t api.Token) string { return t.ID }},
				{"NAME", func(t api.Token) string { return t.Name }},
				{"TENANT", func(t api.Token) string { return t.Tenant }},
				{"SCOPES", func(t api.Token) string { return strings.Join(t.Scopes, ",") }},
				{"EXPIRES", func(t api.Token) string {
					switch {
					case t.Expires.IsZero():
						return "never"
					case !t.Expires.After(now):
						return "expired"
					}
					return "in " + span(t.Expires.Sub(now))
				}},
				{"LAST USED", func(t api.Token) string {
					if t.LastUsed.IsZero() {
						return "-"
					}
					return ago(t.LastUsed, now)
				}},
				{"REPLACED BY", func(t api.Token) string { return t.Replaced }},
			})
		},
	}
	l.flags(cmd, "ids")
	return cmd
}

func (c *cli) tokenCreate() *cobra.Command {
	var r api.TokenRequest
	var scopes []string
	var life time.Duration
	var all bool
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a token and print its text, this once", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			if all == (r.Tenant != "") {
				return usageError{fmt.Errorf("give --tenant NAME, or --all-tenants")}
			}
			if all {
				r.Tenant = "*"
			}
			if life < 0 || life > 0 && life < time.Second {
				return usageError{fmt.Errorf("--expires: %s is less than a second", life)}
			}
			r.Name, r.Scopes, r.LifeSeconds = names[0], scopes, int64(life/time.Second)
			cl := c.client()
			defer cl.Close()
			t, err := cl.CreateToken(cmd.Context(), r)
			if err != nil {
				return err
			}
			return printToken(cmd, t)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Tenant, "tenant", "", "`tenant` that it stands for")
	f.BoolVar(&all, "all-tenants", false, "it stands for every tenant; with --scopes admin for the engine itself")
	f.StringSliceVar(&scopes, "scopes", []string{"read"}, "what it is good for: deploy, invoke, read, admin")
	f.DurationVar(&life, "expires", 90*24*time.Hour, "for how long it holds; 0 for ever")
	f.BoolVar(&r.AccessKey, "access-key", false, "it has an access key too, for AWS's SDKs (docs/lambda.md): two lines follow the text")
	return cmd
}

// printToken prints the token alone on stdout, for scripts, and the rest on stderr.
func printToken(cmd *cobra.Command, t api.NewToken) error {
	end := "does not expire"
	if !t.Token.Expires.IsZero() {
		end = "expires " + t.Token.Expires.Format(time.RFC3339)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "token %s of tenant %s for %s, %s; it is not shown again\n", t.Token.ID, t.Token.Tenant, strings.Join(t.Token.Scopes, ", "), end)
	text := t.Text + "\n"
	if t.SecretAccessKey != "" {
		text += "AWS_ACCESS_KEY_ID=" + t.Token.AccessKey + "\nAWS_SECRET_ACCESS_KEY=" + t.SecretAccessKey + "\n"
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), text)
	return err
}

func (c *cli) tokenRotate() *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use: "rotate ID", Short: "Put a new token in the place of one, which holds for a grace yet", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			t, err := cl.RotateToken(cmd.Context(), ids[0], api.TokenRotation{GraceSeconds: int64(grace / time.Second)})
			if err != nil {
				return err
			}
			return printToken(cmd, t)
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", 24*time.Hour, "for how long the old one holds")
	return cmd
}

func (c *cli) tokenRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID...", Short: "End tokens at once", Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			return each(ids, func(id string) error {
				err := cl.RemoveToken(cmd.Context(), id)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), id)
				}
				return err
			})
		},
	}
}

func (c *cli) tokenWhoami() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show as whom the engine knows this client", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			id, err := cl.Whoami(cmd.Context())
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s, tenant %s, scopes %s\n", printable(id.Who), id.Tenant, strings.Join(id.Scopes, ","))
			}
			return err
		},
	}
}
