package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/daemon"
	"github.com/fre-engine/fre/internal/command"
)

// release is set by the linker: -ldflags "-X main.release=v1.2.3".
var release string

// version returns the version of this binary.
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

// versions is the data of fre version for --format.
type versions struct {
	Client api.Version
	Server *api.Version
}

func versionCommand(c *cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of client and engine", Args: command.Args(cobra.NoArgs),
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
	cmd.Flags().StringVar(&format, "format", "", "`template` for {.Client, .Server}, as in fre images")
	return cmd
}

func doctorCommand(c *cli) *cobra.Command {
	var format, state string
	var costs bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Explain the abilities of this host",
		Long: `Explain the abilities of this host, their use in FRE, and the effect of each
missing ability. The report also gives the duration of frequent operations:
medians, measured now, in less than a second. The command asks the engine; without
an engine the command examines the host itself and needs root for a full report.
The exit code is 1 if the host lacks an ability that FRE needs.`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl := c.client()
			defer cl.Close()
			found, err := cl.Doctor(cmd.Context(), client.DoctorOptions{Costs: costs})
			if errors.Is(err, client.ErrUnreachable) {
				fmt.Fprintln(cmd.ErrOrStderr(), "no engine answers: examining this host directly")
				if found.Checks, err = daemon.Doctor(state, costs); found.Checks != nil && err != nil {
					fmt.Fprintln(cmd.ErrOrStderr(), err)
					err = nil
				}
			}
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if format == "" {
				showChecks(out, found.Checks, costs)
			} else if err := formatEach(out, format, found.Checks); err != nil {
				return err
			}
			for _, k := range found.Checks {
				if !k.OK && !k.Optional {
					return silentExitError(exitError)
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&format, "format", "", "`template` for each check, as in fre images")
	f.BoolVar(&costs, "costs", true, "measure the duration of frequent operations")
	f.StringVar(&state, "state", daemon.DefaultState, "state `directory` to examine if no engine runs")
	return cmd
}

// showChecks prints a line for each check, and below it the explanation.
func showChecks(w io.Writer, checks []api.Check, costs bool) {
	line := func(mark, cost, text string) {
		if costs {
			mark = fmt.Sprintf("%-4s  %7s", mark, cost)
		}
		fmt.Fprintf(w, "%-4s  %s\n", mark, text)
	}
	if costs {
		line("", "COST", "CHECK")
	}
	for _, k := range checks {
		mark := "ok"
		switch {
		case !k.OK && k.Optional:
			mark = "none"
		case !k.OK:
			mark = "LACK"
		}
		line(mark, duration(k.CostNanos), k.Name+": "+k.Found)
		more := [][2]string{{"cost", k.CostOf}, {"does", k.Does}}
		if !k.OK {
			more = [][2]string{{"cost", k.CostOf}, {"then", k.Effect}, {"next", k.Next}}
		}
		for _, m := range more {
			for text := range strings.Lines(m[1]) {
				line("", "", "  "+m[0]+": "+strings.TrimRight(text, "\n"))
			}
		}
	}
}

// duration formats nanoseconds for people, three digits at most; "" for 0.
func duration(ns int64) string {
	switch v := float64(ns); {
	case ns == 0:
		return ""
	case ns < 1000:
		return fmt.Sprintf("%d ns", ns)
	case v < 999.5e3:
		return fmt.Sprintf("%.3g µs", v/1e3)
	case v < 999.5e6:
		return fmt.Sprintf("%.3g ms", v/1e6)
	default:
		return fmt.Sprintf("%.3g s", v/1e9)
	}
}
