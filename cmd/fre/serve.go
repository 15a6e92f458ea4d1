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
)

func serveCommand() *cobra.Command {
	cfg := daemon.Config{Version: version()}
	var level string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the engine: control socket and HTTP gateway",
		Long: `Run the engine in the foreground until SIGTERM or SIGINT.

Functions answer at http://LISTEN/function/NAME, with --tls-cert and --tls-key at
https://LISTEN/function/NAME, over HTTP/1.1 and HTTP/2. The control socket serves the
other fre commands, for root and the group named by --group. Sandboxes never
outlive the engine: whatever a crash leaves is cleaned up at the next start.

--config names a YAML file: "packages" takes precedence over the host's own
configuration of pip, npm, Maven, Composer, RubyGems, Go and apt, "require" lists checks of fre doctor without
which the engine does not start, "shells" says how many interpreters are kept
running ahead of their functions, "work" how much tenants may keep, "network"
what functions may reach beside the public internet, "registry" whether images are
served to others, "gc" which of them go by themselves, "buffers" and "overload" how much memory answers
may wait in, how many events run and wait at once, and what happens to others, "events"
where those that run later are kept, "cluster" which other nodes it works with, "access" and "tls" who may call and where
certificates come from, "revisions" how many of a function are kept, "lambda" where AWS Lambda's API is
served, "openfaas" whether OpenFaaS's clients are answered (see docs/configuration.md).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			if os.Geteuid() != 0 {
				return &hintError{errors.New("the engine must run as root: it makes namespaces, cgroups and mounts"), "run: sudo fre serve"}
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
		return nil, usageError{fmt.Errorf("--log-level: %w", err)}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
