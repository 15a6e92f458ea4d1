package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"sort"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
)

func (c *cli) invokeCommand() *cobra.Command {
	var (
		data, method, path string
		headers            []string
		include            bool
	)
	cmd := &cobra.Command{
		Use:   "invoke NAME",
		Short: "Send an event to a function and print its answer",
		Long: `Send an event to a function and print its answer, as
POST http://ADDR/function/NAME does. --data @FILE sends a file, --data - stdin.
An answer with a status from 400 is printed too; from 500 the exit code is 5,
below 1.`,
		Args: args(cobra.ExactArgs(1)), ValidArgsFunction: c.completeFunctions,
		RunE: interruptible(func(cmd *cobra.Command, names []string) error {
			event := client.Event{Method: method, Header: http.Header{}}
			event.Path, event.Query, _ = strings.Cut(path, "?")
			for _, h := range headers {
				key, value, ok := strings.Cut(h, ":")
				if !ok || strings.TrimSpace(key) == "" {
					return usageError{fmt.Errorf("--header: %q is not NAME: VALUE", h)}
				}
				event.Header.Add(textproto.TrimString(key), textproto.TrimString(value))
			}
			switch {
			case data == "-":
				event.Body = cmd.InOrStdin()
			case strings.HasPrefix(data, "@"):
				f, err := os.Open(data[1:])
				if err != nil {
					return err
				}
				defer f.Close()
				event.Body = f
			case data != "":
				event.Body = strings.NewReader(data)
			}
			if event.Body != nil && event.Header.Get("Content-Type") == "" {
				event.Header.Set("Content-Type", "application/octet-stream")
			}
			cl := c.client()
			defer cl.Close()
			resp, err := cl.Invoke(cmd.Context(), names[0], event)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			out := cmd.OutOrStdout()
			if include {
				fmt.Fprintf(out, "HTTP %s\n", resp.Status)
				var lines []string
				for key, values := range resp.Header {
					for _, v := range values {
						lines = append(lines, printable(key+": "+v))
					}
				}
				sort.Strings(lines)
				fmt.Fprintf(out, "%s\n\n", strings.Join(lines, "\n"))
			}
			if _, err := io.Copy(out, resp.Body); err != nil {
				return &hintError{fmt.Errorf("function broke off its answer: %w", err), "fre logs " + names[0]}
			}
			switch {
			case resp.StatusCode >= 500:
				return silentExitError(exitFunction)
			case resp.StatusCode >= 400:
				return silentExitError(exitError)
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&data, "data", "d", "", "body of the event; @`FILE` or - for stdin")
	f.StringVarP(&method, "method", "X", "POST", "HTTP method")
	f.StringArrayVarP(&headers, "header", "H", nil, "`NAME: VALUE`; may be repeated")
	f.StringVar(&path, "path", "/", "path behind the function's name, with its query")
	f.BoolVarP(&include, "include", "i", false, "print status and headers too")
	return cmd
}

func (c *cli) runCommand() *cobra.Command {
	var req api.RunRequest
	var j joining
	var tty bool
	var name string
	cmd := &cobra.Command{
		Use:   "run IMAGE [-- COMMAND [ARG...]]",
		Short: "Run a command in a sandbox of its own",
		Long: `Run a command in a sandbox of its own, whose root is the image. Input, output
and exit status are passed through (fre help exit-codes); Ctrl-C kills it.

With --tty it is a container with a terminal, gone when it ends, and the image's
own command does where none is named. With --interactive too that terminal takes
the place of the one here: Ctrl-C goes to what runs inside, Ctrl-P Ctrl-Q leaves
it running, fre attach comes back to it.`,
		Args: args(cobra.MinimumNArgs(1)), ValidArgsFunction: c.completeImageFirst,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Image, req.Args = imageAndCommand(args)
			cl := c.client()
			defer cl.Close()
			switch {
			case tty && req.Trace:
				return usageError{errors.New("--trace and --tty do not go together")}
			case tty:
				return j.run(cmd, cl, api.ContainerRequest{
					Image: req.Image, Name: name, Tenant: req.Tenant, Args: req.Args, Env: req.Env, Work: "rw", Stdin: j.input, TTY: true, AutoRemove: true,
				})
			case name != "":
				return usageError{errors.New("--name is for containers: add --tty, or use fre create")}
			case len(req.Args) == 0:
				return usageError{errors.New("name a command: fre run IMAGE -- COMMAND")}
			}
			kill, stop := onInterrupt()
			defer stop()
			exit, err := cl.Run(cmd.Context(), req, client.RunIO{Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(), Kill: kill})
			if err != nil {
				return runError{err}
			}
			if req.Trace {
				printTrace(cmd.ErrOrStderr(), exit)
			}
			return ended(cmd, exit)
		},
	}
	cmd.Flags().SetInterspersed(false) // flags behind IMAGE are the command's
	cmd.Flags().StringArrayVarP(&req.Env, "env", "e", nil, "`KEY=VALUE` for the command; may be repeated")
	cmd.Flags().BoolVar(&req.Trace, "trace", false, "print the steps of the start, and when each was done, to stderr at the end")
	cmd.Flags().StringVar(&req.Tenant, "tenant", "", "whose /work it sees; default: default")
	cmd.Flags().BoolVarP(&j.input, "interactive", "i", false, "pass input on, which is done without --tty anyway")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give it a terminal")
	cmd.Flags().StringVar(&name, "name", "", "with --tty, what it is called meanwhile; default: made up")
	j.flags(cmd)
	return cmd
}

// printTrace prints a start as a table: each step, when it was done and how long
// after the one before.
func printTrace(w io.Writer, exit api.Exit) {
	t := tabwriter.NewWriter(w, 0, 4, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s start\tdone at µs\ttook µs\t\n", exit.Start)
	before := int64(0)
	for _, step := range exit.Trace {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t\n", step.Name, float64(step.DoneNanos)/1e3, float64(step.DoneNanos-before)/1e3)
		before = step.DoneNanos
	}
	_ = t.Flush()
}

// runError has exit codes of its own, so that they cannot be taken for the
// command's.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

func (e runError) code() int {
	var wire *api.Error
	if errors.As(e.error, &wire) {
		switch wire.Code { //nolint:exhaustive // the few with a status of their own
		case api.CodeCommandNotFound:
			return exitRunNotFound
		case api.CodeCommandNotExec:
			return exitRunNotExec
		default:
		}
	}
	return exitRunEngine
}
