package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

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

// runError has separate exit codes, which differ from the command's.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

func (e runError) code() int {
	var wire *api.Error
	if errors.As(e.error, &wire) {
		switch wire.Code {
		case api.CodeCommandNotFound:
			return exitRunNotFound
		case api.CodeCommandNotExec:
			return exitRunNotExec
		default:
		}
	}
	return exitRunEngine
}

// exitStatus converts an exit to a shell's exit status.
func exitStatus(e api.Exit) int {
	if e.Signal != 0 {
		return 128 + e.Signal
	}
	return e.Code
}

// ended passes on the exit status of a command.
func ended(cmd *cobra.Command, exit api.Exit) error {
	if exit.OOMKilled {
		fmt.Fprintln(cmd.ErrOrStderr(), "fre: the memory limit killed the command")
	}
	if status := exitStatus(exit); status != 0 {
		return silentExitError(status)
	}
	return nil
}

func isCode(err error, code api.Code) bool {
	var wire *api.Error
	return errors.As(err, &wire) && wire.Code == code
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
