// Package command is the common frame of FRE's command-line programs: groups of commands, usage
// errors, interrupts and the report of an error.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/wording"
)

// UsageError is the user's mistake in the command line.
type UsageError struct{ error }

// Usage makes err a UsageError.
func Usage(err error) error { return UsageError{err} }

// Unwrap returns the error without the mark.
func (e UsageError) Unwrap() error { return e.error }

// Root completes the root command of a program: the program reports errors itself, and a flag
// that cannot be parsed is a usage error.
func Root(cmd *cobra.Command) *cobra.Command {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usage(failure.Hint(wording.Flag(err), cmd.CommandPath()+" --help lists the flags"))
	})
	return Group(cmd)
}

// Group makes cmd a command that only holds subcommands. Without an argument it prints its help; an
// unknown subcommand is a usage error that names similar ones.
func Group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		message := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			message += ": did you mean " + strings.Join(near, " or ") + "?"
		}
		return Usage(failure.Hint(errors.New(message), cmd.CommandPath()+" --help lists the commands"))
	}
	return cmd
}

// Args makes cobra's complaint about arguments a usage error.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usage(fmt.Errorf("%w\nusage: %s", err, cmd.UseLine()))
		}
		return nil
	}
}

// Interruptible ends the context of a command at SIGINT or SIGTERM; the next signal ends the
// program. The error of an interrupted command is [context.Canceled].
func Interruptible(run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
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

// Execute runs the command that args name, with these streams.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

// Report prints a message after the name of the program, and the next step, "" for none, on a line
// of its own. Control characters are escaped, because a text may come from a function or a server.
func Report(w io.Writer, program, message, next string) {
	_, _ = fmt.Fprintf(w, "%s: %s\n", program, PrintableLines(message)) // a broken stderr cannot be reported
	if next != "" {
		_, _ = fmt.Fprintf(w, "     %s\n", PrintableLines(next))
	}
}

// Printable escapes the control characters of s, because a terminal would act on them: commands and
// names are untrusted.
func Printable(s string) string { return escapeControls(s, "") }

// PrintableLines is Printable for texts of several lines.
func PrintableLines(s string) string { return escapeControls(s, "\n\t") }

// escapeControls writes the control characters of s as Go does, such as \x1b, except characters in
// keep.
func escapeControls(s, keep string) string {
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if !unicode.IsControl(r) || strings.ContainsRune(keep, r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}
