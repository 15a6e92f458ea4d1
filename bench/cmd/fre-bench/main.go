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

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
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

// run is main without the process: it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := command.Execute(context.Background(), newRoot(), args, stdin, stdout, stderr)
	if err == nil {
		return 0
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(stderr, "fre-bench: interrupted")
		return exitInterrupt
	}
	command.Report(stderr, "fre-bench", err.Error(), failure.Next(err))
	var usage command.UsageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := command.Root(&cobra.Command{
		Use:   "fre-bench",
		Short: "Measure functions and other servers",
		Long: `Measure functions, other HTTP servers, and the kernel's network work beside them.

Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted before a report.`,
		Example: `  fre-bench http http://localhost:8080/function/hello -c 32   load an HTTP server
  fre-bench video http://HOST/master.m3u8 --viewers 200       play HLS with many viewers
  fre-bench trace net                                         count the kernel's network work`,
		Version: release,
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(httpCommand(), videoCommand(), traceCommand())
	return root
}

// writeFile creates or replaces a file with the output of write.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
