package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/daemon"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func serveCommand() *cobra.Command {
	cfg := daemon.Config{Version: version()}
	var level string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the engine: control socket and HTTP gateway",
		Long: `Run the engine in the foreground until SIGTERM or SIGINT.

Functions answer at http://LISTEN/function/NAME, over HTTP/1.1 and HTTP/2; with --tls-cert
and --tls-key at https://LISTEN/function/NAME. The other fre commands use the control
socket, open to root and the group in --group. All sandboxes end with the engine, and the
next start removes the leftovers of a crash.

--config names a YAML file. All its keys are optional (docs/configuration.md):

    require      checks of fre doctor that must pass, else the engine does not start
    packages     sources of packages, instead of the host's configuration of pip, npm,
                 Maven, Composer, RubyGems, Go and apt
    parked_interpreters
                 number of interpreters parked ahead of their functions
    registry     connections to registries, signatures, a registry of the engine's own
    lambda       address of AWS Lambda's API
    images       limits of images from registries and archives
    work         size limits of tenants' /work
    revisions    number of old revisions to keep
    network      networks that functions may reach beside the public internet
    buffers      memory for bodies and connections
    overload     limits of running and waiting events
    gc           automatic removal of images
    cluster      other nodes
    openfaas     OpenFaaS's API
    events       storage and limits of asynchronous events
    access, tls  permission to call functions, certificates`,
		Example: `  fre serve --listen 0.0.0.0:8080 --config /etc/fre/fre.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			if os.Geteuid() != 0 {
				return failure.Hint(errors.New("the engine must run as root, because it makes namespaces, cgroups and mounts"), "run: sudo fre serve")
			}
			log, err := newLog(level)
			if err != nil {
				return err
			}
			return daemon.Run(ctx, stop, cfg, log)
		},
	}
	f := cmd.Flags()
	cfg.Flags(f)
	f.StringVar(&cfg.Socket, "socket", defaultSocket(), "control socket `path`")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// newLog logs to stderr.
func newLog(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, command.Usage(fmt.Errorf("--log-level: %w", err))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
