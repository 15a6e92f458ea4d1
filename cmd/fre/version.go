package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

// release is set by the linker: -ldflags "-X main.release=v1.2.3".
var release string

// version is what this binary is.
func version() api.Version {
	v := api.Version{Version: release, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
		if v.Version == "" {
			v.Version = info.Main.Version
		}
	}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "devel"
	}
	return v
}

// versions is what --format sees of fre version.
type versions struct {
	Client api.Version
	Server *api.Version
}

func (c *cli) versionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of client and engine", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			v := versions{Client: version()}
			server, err := cl.Version(cmd.Context())
			if err == nil {
				v.Server = &server
			}
			// Without an engine the client's version is the answer.
			unreachable := errors.Is(err, client.ErrUnreachable)
			if unreachable {
				err = nil
			}
			if format != "" {
				return errors.Join(formatEach(cmd.OutOrStdout(), format, []versions{v}), err)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
			line := func(who string, v api.Version) {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s/%s\t%s\n", who, v.Version, v.Go, v.OS, v.Arch, v.Commit)
			}
			line("client", v.Client)
			if v.Server != nil {
				line("engine", *v.Server)
			}
			if unreachable {
				fmt.Fprintf(t, "engine\tnot reachable at %s\n", c.socket)
			}
			return errors.Join(t.Flush(), err)
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "`template` for {.Client, .Server}, as for fre images")
	return cmd
}

func (c *cli) doctorCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Explain what this host can do and what follows",
		Long: `Explain what this host can do and what follows. Asks the engine; where none
runs, looks itself, which needs root to see everything. The exit code is 1 when
something is amiss.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			found, err := cl.Doctor(cmd.Context())
			if errors.Is(err, client.ErrUnreachable) {
				fmt.Fprintln(cmd.ErrOrStderr(), "no engine answers: looking at this host directly")
				for _, k := range doctorLocal() {
					found.Checks = append(found.Checks, api.Check{ID: k.ID, Name: k.Name, OK: k.OK, Optional: k.Optional, Found: k.Found, Effect: k.Effect, Next: k.Next})
				}
				err = nil
			}
			if err != nil {
				return err
			}
			amiss := 0
			for _, k := range found.Checks {
				if !k.OK && !k.Optional {
					amiss++
				}
			}
			out := cmd.OutOrStdout()
			if format != "" {
				if err := formatEach(out, format, found.Checks); err != nil {
					return err
				}
			} else {
				for _, k := range found.Checks {
					mark := "ok  "
					switch {
					case !k.OK && k.Optional:
						mark = "none"
					case !k.OK:
						mark = "LACK"
					}
					fmt.Fprintf(out, "%s  %s: %s\n", mark, k.Name, k.Found)
					for _, more := range []string{k.Effect, k.Next} {
						if !k.OK && more != "" {
							fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(more, "\n", "\n      "))
						}
					}
				}
			}
			if amiss > 0 {
				return silentExitError(exitError)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "`template` for each check, as for fre images")
	return cmd
}
