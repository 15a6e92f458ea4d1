// Command fre-video is the video service and its command line. It accepts videos of untrusted
// people, transcodes them in sandboxes of a FRE engine, and serves HLS and DASH. `fre-video
// serve` runs the service; all other commands are HTTP clients of a running service.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
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
	exitNoService = 3
	exitNotFound  = 4
	exitFailed    = 5
	exitInterrupt = 130
)

const exitCodes = `Exit codes of fre-video:

    0  success
    1  error: the message gives the reason
    2  wrong usage: unknown command or flag, missing argument
    3  the service is not reachable
    4  not found: no such asset or live stream
    5  the work on the asset has failed
  130  interrupted (Ctrl-C)
`

// release is set by the build.
var release = "unknown"

// run is main without the process: it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	err := command.Execute(ctx, newRoot(), args, stdin, stdout, stderr)
	if err == nil {
		return 0
	}
	next := failure.Next(err)
	if ctx.Err() != nil {
		command.Report(stderr, "fre-video", "interrupted", next)
		return exitInterrupt
	}
	var wire *api.Error
	var usage command.UsageError
	var failed *failedError
	isWire := errors.As(err, &wire)
	if isWire && next == "" {
		next = wire.Next
	}
	command.Report(stderr, "fre-video", err.Error(), next)
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &failed):
		return exitFailed
	case errors.Is(err, errUnreachable):
		return exitNoService
	case isWire && wire.Code == api.CodeNotFound:
		return exitNotFound
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := command.Root(&cobra.Command{
		Use:     "fre-video",
		Short:   "Video on FRE: upload, transcode in sandboxes, serve as HLS and DASH",
		Version: release,
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(serveCommand(), uploadCommand(), lsCommand(), inspectCommand(), rmCommand(), retryCommand(), liveCommand(),
		&cobra.Command{Use: "exit-codes", Short: "Exit codes of fre-video", Long: exitCodes})
	return root
}
