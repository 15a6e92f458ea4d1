// Command fre is the Function Runtime Environment: `fre serve` is the engine, every other command
// asks a running engine through its Unix socket.
//
// Each file holds the commands of one noun, as functions of a *cli. Below them are cli.go (the
// connection to the engine), exit.go, complete.go, progress.go and table.go. serve.go runs package
// daemon; the other files use package client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

func main() {
	os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute is main without the process around it.
func execute(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	err := command.Execute(ctx, newRoot(), args, stdin, stdout, stderr)
	if err == nil {
		return 0
	}
	var silent silentExitError
	if errors.As(err, &silent) {
		return int(silent)
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(stderr, "fre: interrupted")
		return exitInterrupt
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // errors joined by each(), not errors wrapped by an error
		all = joined.Unwrap()
	}
	for _, err := range all {
		message, next := explain(err)
		command.Report(stderr, "fre", message, next)
	}
	return exitCode(err)
}

func newRoot() *cobra.Command {
	c := new(cli)
	root := command.Root(&cobra.Command{
		Use:   "fre",
		Short: "Run untrusted functions, each in a sandbox of its own",
		Long: `FRE runs untrusted functions, each in a sandbox of its own. fre serve is the engine;
all other commands are clients of a running engine.`,
		Example: `  fre serve                       start the engine (as root)
  fre new python hello            create a template in the directory hello
  fre test hello                  build the template and run its tests
  fre dev --test hello            build, deploy and test again after each change of a file
  fre deploy hello                build the template and deploy its function
  fre invoke hello -d '{"a": 1}'  call the function`,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.findHost(cmd) },
	})

	root.PersistentFlags().StringVar(&c.socket, "socket", defaultSocket(), "`path` of the engine's control socket (FRE_SOCKET)")
	root.PersistentFlags().Lookup("socket").DefValue = client.DefaultSocket
	root.AddCommand(
		serveCommand(), newCommand(), templateCommand(c), buildCommand(c),
		imagesCommand(c), imageCommand(c), pullCommand(c), pushCommand(c), registryCommand(), deployCommand(c), testCommand(c), devCommand(c), functionsCommand(c), functionCommand(c),
		agentCommand(c), mcpCommand(c),
		keyCommand(), tenantCommand(c), tokenCommand(c), secretCommand(c), auditCommand(c),
		invokeCommand(c), runCommand(c), createCommand(c), startCommand(c), attachCommand(c), renameCommand(c), rmCommand(c), containerCommand(c), psCommand(c), topCommand(c), statsCommand(c), inspectCommand(c), logsCommand(c), eventsCommand(c), triggersCommand(c), nodesCommand(c), stopCommand(c), killCommand(c), waitCommand(c),
		versionCommand(c), statusCommand(c), doctorCommand(c), systemCommand(c), debugCommand(c),
		&cobra.Command{Use: "exit-codes", Short: "Exit codes of fre", Long: exitCodes},
	)
	return root
}
