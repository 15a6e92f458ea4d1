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
	"github.com/fre-engine/fre/internal/command"
)

var errNoRegistryDir = command.Usage(errors.New("name the registry's directory: --dir DIR"))

func registryCommand() *cobra.Command {
	cmd := command.Group(&cobra.Command{
		Use:   "registry",
		Short: "Run an OCI registry",
		Long: `Run an OCI registry on disk for fre push, fre pull, docker and all other registry clients.
The registry needs no engine. See docs/registry.md.`,
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
		Long: `Run a registry in the foreground until SIGTERM or SIGINT. The registry needs no root.

On a loopback address or a Unix socket, all local clients may push and pull, unless --users
names a file of users. On any other address the registry requires TLS and users, or
--insecure. Each line of the users' file comes from htpasswd -nB: NAME:HASH may pull,
NAME:HASH:write may also push.

Every --gc-interval the registry removes content without a manifest, after --grace.`,
		Example: `  fre registry serve --dir /srv/registry
  fre push shop 127.0.0.1:5000/shop:1`,
		Args: command.Args(cobra.NoArgs),
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
		Short: "Remove unreferenced content of a registry",
		Long: `Remove content without a manifest, and unfinished uploads, after --grace. Use this command
for a stopped registry. A running registry collects by itself (fre registry serve
--gc-interval).`,
		Args: command.Args(cobra.NoArgs),
		RunE: command.Interruptible(func(cmd *cobra.Command, _ []string) error {
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
	f.StringVar(&cfg.Dir, "dir", "", "`directory` of the registry")
	f.BoolVar(&cfg.Untagged, "untagged", false, "also remove manifests without a tag, unless an index or a subject keeps them")
	f.BoolVar(&dry, "dry-run", false, "only report the result, and remove nothing")
	f.DurationVar(&cfg.Grace, "grace", daemon.DefaultGrace, "how long to keep unreferenced content")
	f.StringVar(&format, "format", "", "`template` for the result: 'json', or Go's text/template such as '{{.Bytes}}'")
	return cmd
}
