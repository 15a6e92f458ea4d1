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

var errNoRegistryDir = usageError{errors.New("name the registry's directory: --dir DIR")}

func registryCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "registry",
		Short: "Serve images to other hosts and clients",
		Long: `An OCI registry on disk, for fre push and pull, docker and every other client of
registries (docs/registry.md). It needs no engine.`,
	})
	cmd.AddCommand(registryServeCommand(), registryGCCommand())
	return cmd
}

func registryServeCommand() *cobra.Command {
	var cfg daemon.Registry
	var level string
	cmd := &cobra.Command{
		Use:   "serve --dir DIR",
		Short: "Run a registry",
		Long: `Run a registry in the foreground until SIGTERM or SIGINT. It needs no root.

Anybody who reaches a loopback address or a Unix socket may push and pull unless
--users names a file of who may: lines as htpasswd -B writes them, NAME:HASH for who
may pull and NAME:HASH:write for who may push as well. Elsewhere it listens with TLS
and users only, or with --insecure.

What no manifest refers to goes after --grace, in a collection each --gc-interval.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLog(level)
			if err != nil {
				return err
			}
			if cfg.Dir == "" {
				return errNoRegistryDir
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			return cfg.Serve(ctx, stop, log)
		},
	}
	f := cmd.Flags()
	cfg.Flags(f)
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

func registryGCCommand() *cobra.Command {
	var cfg daemon.Registry
	var format string
	var dry bool
	cmd := &cobra.Command{
		Use:   "gc --dir DIR",
		Short: "Free what nothing in a registry refers to",
		Long: `Free what no manifest of a registry refers to, and unfinished uploads, after their
grace period. A registry that runs does that by itself (fre registry serve
--gc-interval); this is for one that does not.`,
		Args: args(cobra.NoArgs),
		RunE: interruptible(func(cmd *cobra.Command, _ []string) error {
			if cfg.Dir == "" {
				return errNoRegistryDir
			}
			if _, err := os.Stat(cfg.Dir); err != nil {
				return err
			}
			did, err := cfg.Collect(cmd.Context(), dry, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			if err != nil {
				return err
			}
			if format != "" {
				return formatEach(cmd.OutOrStdout(), format, []daemon.Collected{did})
			}
			verb := "freed"
			if dry {
				verb = "would free"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s: %d files, %d manifests, %d uploads, %d repositories\n", verb, size(did.Bytes), did.Files, did.Manifests, did.Uploads, did.Repositories)
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Dir, "dir", "", "`directory` that holds the registry")
	f.BoolVar(&cfg.Untagged, "untagged", false, "also manifests without a tag that no index and no subject keeps")
	f.BoolVar(&dry, "dry-run", false, "only say what would go")
	f.DurationVar(&cfg.Grace, "grace", daemon.DefaultGrace, "how long what nothing refers to is kept")
	f.StringVar(&format, "format", "", "`template` for the result: 'json', or Go's text/template such as '{{.Bytes}}'")
	return cmd
}
