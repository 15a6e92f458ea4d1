// Command fre-bench measures servers and the kernel beside them: http loads an HTTP server, video
// plays HLS with virtual viewers, and trace counts the kernel's network work. Only trace asks an
// engine, for the sandboxes that run.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/wording"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes.
const (
	exitError     = 1
	exitUsage     = 2
	exitInterrupt = 130
)

// release is set by the build.
var release = "unknown"

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// hintError is an error with a next step.
type hintError struct {
	error
	next string
}

func (e *hintError) Unwrap() error { return e.error }

// run is main without the process: it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(stderr, "fre-bench: interrupted")
		return exitInterrupt
	}
	fmt.Fprintln(stderr, "fre-bench:", printable(err.Error())) // the text may come from a server
	var hint *hintError
	if errors.As(err, &hint) {
		fmt.Fprintln(stderr, "    ", hint.next)
	}
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "fre-bench",
		Short: "Measure functions and other servers",
		Long: `Measure functions, other HTTP servers, and the kernel's network work beside them.

Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted before a report.`,
		Example: `  fre-bench http http://localhost:8080/function/hello -c 32   load an HTTP server
  fre-bench video http://HOST/master.m3u8 --viewers 200       play HLS with many viewers
  fre-bench trace net                                         count the kernel's network work`,
		Version:       release,
		SilenceUsage:  true,
		SilenceErrors: true,
	})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{&hintError{wording.Flag(err), cmd.CommandPath() + " --help lists the flags"}}
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(httpCommand(), videoCommand(), traceCommand())
	return root
}

// group makes a command that only holds subcommands.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		message := fmt.Sprintf("unknown command %q", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			message += ": did you mean " + strings.Join(near, " or ") + "?"
		}
		return usageError{&hintError{errors.New(message), cmd.CommandPath() + " --help lists the commands"}}
	}
	return cmd
}

// args turns an error about the number of arguments into a usageError.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return usageError{fmt.Errorf("%w\nusage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

// interruptible ends a command's context at SIGINT or SIGTERM; the next signal ends fre-bench.
func interruptible(run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop)
		cmd.SetContext(ctx)
		err := run(cmd, args)
		if err != nil && ctx.Err() != nil {
			return context.Canceled
		}
		return err
	}
}

// printable replaces the control characters of s, except line feeds, by question marks.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return '?'
		}
		return r
	}, s)
}

// writeFile creates or replaces a file with the output of write.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
