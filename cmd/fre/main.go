// Command fre is the Function Runtime Environment: `fre serve` is the engine, every other command
// asks a running engine through its Unix socket.
//
// Each file holds the commands of one noun. serve.go runs package daemon; the other files
// use package client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes; `fre help exit-codes` explains them.
const (
	exitError        = 1
	exitUsage        = 2
	exitUnreachable  = 3
	exitNotFound     = 4
	exitFunction     = 5
	exitNotNormal    = 6
	exitAgentTimeout = 124
	exitRunEngine    = 125
	exitRunNotExec   = 126
	exitRunNotFound  = 127
	exitInterrupt    = 130
)

const exitCodes = `Exit codes of fre:

    0  success
    1  error: the message gives the reason
    2  wrong usage: unknown command or flag, missing argument
    3  the engine is not reachable
    4  not found: no such function, image or sandbox
    5  the function failed: exception, crash, time-out, or a status from 500 to 599
    6  fre status: the engine's state is not normal
  130  interrupted (Ctrl-C)

fre run and fre agent exec exit with the command's own status (128 + n if signal n
ended the command), or with:

  124  fre agent exec: the command reached its time limit and was killed
  125  the engine could not run the command
  126  the command cannot be executed
  127  the command was not found in the image
`

// silentExitError ends the program with a status and without a message.
type silentExitError int

func (e silentExitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// run is main without the process around it.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
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

// explain returns the message of an error and the next step for people.
func explain(err error) (message, next string) {
	message, next = err.Error(), failure.Next(err)
	var wire *api.Error
	var usage command.UsageError
	switch {
	case next != "":
	case errors.As(err, &wire):
		next = wire.Next
		if next == "" && wire.Code == api.CodeNotFound {
			next = "fre functions, fre images and fre ps list the existing objects"
		}
	case errors.Is(err, client.ErrUnreachable) && os.Getenv("FRE_HOST") != "":
		next = "compare FRE_HOST with --api-listen of fre serve on the engine's host"
	case errors.Is(err, client.ErrUnreachable):
		next = "start the engine as root: fre serve; or name the engine's socket: --socket PATH or FRE_SOCKET"
	case errors.As(err, &usage):
		next = "fre help lists the commands"
	}
	return message, next
}

func exitCode(err error) int {
	var usage command.UsageError
	var wire *api.Error
	var ran runError
	switch {
	case errors.As(err, &ran):
		return ran.code()
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, client.ErrUnreachable):
		return exitUnreachable
	case errors.As(err, &wire):
		switch wire.Code {
		case api.CodeNotFound:
			return exitNotFound
		case api.CodeFunction, api.CodeCrash, api.CodeTimeout, api.CodeLoop, api.CodeStepMissing:
			return exitFunction
		default:
			return exitError
		}
	}
	return exitError
}

// cli is the state that the commands share.
type cli struct {
	socket string
	remote *client.Remote // nil: the engine is at socket
}

func (c *cli) client() *client.Client {
	if c.remote != nil {
		if cl, err := client.NewRemote(*c.remote); err == nil { // findHost has reported an error before
			return cl
		}
	}
	return client.New(c.socket)
}

// findHost finds the remote engine, unless a flag names a socket: FRE_HOST, with the token in
// FRE_TOKEN or in the file FRE_TOKEN_FILE.
func (c *cli) findHost(cmd *cobra.Command) error {
	host := os.Getenv("FRE_HOST")
	if host == "" || cmd.Flags().Changed("socket") {
		return nil
	}
	r := client.Remote{Host: host, Token: os.Getenv("FRE_TOKEN")}
	if file := os.Getenv("FRE_TOKEN_FILE"); file != "" && r.Token == "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("FRE_TOKEN_FILE: %w", err)
		}
		r.Token = strings.TrimSpace(string(raw))
	}
	if _, err := client.NewRemote(r); err != nil {
		return command.Usage(fmt.Errorf("FRE_HOST: %w", err))
	}
	c.remote = &r
	return nil
}

func defaultSocket() string {
	if v := os.Getenv("FRE_SOCKET"); v != "" {
		return v
	}
	return client.DefaultSocket
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
		serveCommand(), c.newCommand(), c.templateCommand(), c.buildCommand(),
		c.imagesCommand(), c.imageCommand(), c.pullCommand(), c.pushCommand(), registryCommand(), c.deployCommand(), c.testCommand(), c.devCommand(), c.functionsCommand(), c.functionCommand(),
		c.agentCommand(), c.mcpCommand(),
		c.keyCommand(), c.tenantCommand(), c.tokenCommand(), c.secretCommand(), c.auditCommand(),
		c.invokeCommand(), c.runCommand(), c.createCommand(), c.startCommand(), c.attachCommand(), c.renameCommand(), c.rmCommand(), c.containerCommand(), c.psCommand(), c.topCommand(), c.statsCommand(), c.inspectCommand(), c.logsCommand(), c.eventsCommand(), c.triggersCommand(), c.nodesCommand(), c.stopCommand(), c.killCommand(), c.waitCommand(),
		c.versionCommand(), c.statusCommand(), c.doctorCommand(), c.systemCommand(), c.debugCommand(),
		&cobra.Command{Use: "exit-codes", Short: "Exit codes of fre", Long: exitCodes},
	)
	return root
}
