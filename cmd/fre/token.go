package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/internal/command"
)

func tokenCommand(c *cli) *cobra.Command {
	cmd := command.Group(&cobra.Command{
		Use: "token", Short: "Work with tokens for the remote control API and the gateway",
		Long: `Work with tokens. A token stands for one tenant or for all tenants, and has scopes:
deploy, invoke, read, admin. fre shows the text of a token once; the engine keeps only a
hash. See docs/tenants.md.

Clients send "Authorization: Bearer TOKEN". fre itself takes the token from FRE_TOKEN or
from the file named by FRE_TOKEN_FILE, and sends the token to the engine at FRE_HOST.`,
		Example: `  fre token create ci --tenant acme --scopes deploy,invoke > ci.token
  FRE_HOST=https://engine.example:8443 FRE_TOKEN_FILE=ci.token fre deploy hello`,
	})

	cmd.AddCommand(tokenList(c), tokenCreate(c), tokenRotate(c), tokenRemove(c), tokenWhoami(c))
	return cmd
}

func tokenList(c *cli) *cobra.Command {
	var l listing
	cmd := &cobra.Command{
		Use: "ls", Short: "List tokens, without their text", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			all, err := cl.Tokens().List(cmd.Context())
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

func tokenCreate(c *cli) *cobra.Command {
	var r api.TokenRequest
	var scopes []string
	var life time.Duration
	var all bool
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a token and print its text once", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			if all == (r.Tenant != "") {
				return command.Usage(fmt.Errorf("give either --tenant NAME or --all-tenants"))
			}
			if all {
				r.Tenant = "*"
			}
			if life < 0 || life > 0 && life < time.Second {
				return command.Usage(fmt.Errorf("--expires: %s is less than a second", life))
			}
			r.Name, r.Scopes, r.LifeSeconds = names[0], scopes, int64(life/time.Second)
			cl := c.client()
			defer cl.Close()
			t, err := cl.Tokens().Create(cmd.Context(), r)
			if err != nil {
				return err
			}
			return printToken(cmd, t)
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Tenant, "tenant", "", "`tenant` that the token stands for")
	f.BoolVar(&all, "all-tenants", false, "let the token stand for all tenants; with --scopes admin also for the engine itself")
	f.StringSliceVar(&scopes, "scopes", []string{"read"}, "rights of the token: deploy, invoke, read, admin")
	f.DurationVar(&life, "expires", 90*24*time.Hour, "time until the token expires; 0: never")
	f.BoolVar(&r.AccessKey, "access-key", false, "also create an access key for AWS's SDKs (docs/lambda.md), printed in two lines after the text")
	return cmd
}

// printToken prints the token alone on stdout, for scripts, and the rest on stderr.
func printToken(cmd *cobra.Command, t api.NewToken) error {
	end := "does not expire"
	if !t.Token.Expires.IsZero() {
		end = "expires " + t.Token.Expires.Format(time.RFC3339)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "token %s of tenant %s for %s, %s; fre does not show the text again\n", t.Token.ID, t.Token.Tenant, strings.Join(t.Token.Scopes, ", "), end)
	text := t.Text + "\n"
	if t.SecretAccessKey != "" {
		text += "AWS_ACCESS_KEY_ID=" + t.Token.AccessKey + "\nAWS_SECRET_ACCESS_KEY=" + t.SecretAccessKey + "\n"
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), text)
	return err
}

func tokenRotate(c *cli) *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use: "rotate ID", Short: "Replace a token; the old token stays valid for a grace period", Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			t, err := cl.Tokens().Rotate(cmd.Context(), ids[0], api.TokenRotation{GraceSeconds: int64(grace / time.Second)})
			if err != nil {
				return err
			}
			return printToken(cmd, t)
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", 24*time.Hour, "how long the old token stays valid")
	return cmd
}

func tokenRemove(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rm ID...", Short: "Revoke tokens at once", Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			cl := c.client()
			defer cl.Close()
			return each(ids, func(id string) error {
				err := cl.Tokens().Remove(cmd.Context(), id)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), id)
				}
				return err
			})
		},
	}
}

func tokenWhoami(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show the user, tenant and scopes of this client", Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			id, err := cl.Whoami(cmd.Context())
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s, tenant %s, scopes %s\n", command.Printable(id.Who), id.Tenant, strings.Join(id.Scopes, ","))
			}
			return err
		},
	}
}
