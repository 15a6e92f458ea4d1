package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/registry"
)

// registryConfig configures a registry: directory, address, users and collections.
type registryConfig struct {
	Dir, Listen        string
	Cert, Key          string
	Users              string
	ReadOnly, Insecure bool
	Interval, Grace    time.Duration // Interval 0 or below: no collections
	Untagged           bool
}

const (
	defaultRegistryListen   = "127.0.0.1:5000"
	defaultRegistryInterval = 6 * time.Hour
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
	var cfg registryConfig
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
			return serveRegistry(ctx, stop, cfg, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Dir, "dir", "", "`directory` that holds the registry; made if it is missing")
	f.StringVar(&cfg.Listen, "listen", defaultRegistryListen, "`address`: HOST:PORT, or unix:PATH")
	f.StringVar(&cfg.Cert, "tls-cert", "", "`file` with the certificate and those that lead to its authority, PEM")
	f.StringVar(&cfg.Key, "tls-key", "", "`file` with the certificate's key, PEM")
	f.StringVar(&cfg.Users, "users", "", "`file` of who may pull and push; both files are read again when they change")
	f.BoolVar(&cfg.ReadOnly, "read-only", false, "refuse every change")
	f.BoolVar(&cfg.Insecure, "insecure", false, "listen where others reach it without TLS and users")
	f.DurationVar(&cfg.Interval, "gc-interval", defaultRegistryInterval, "time between two collections; 0 for none")
	f.DurationVar(&cfg.Grace, "grace", registry.DefaultGrace, "how long what nothing refers to is kept, unfinished uploads too")
	f.BoolVar(&cfg.Untagged, "gc-untagged", false, "collect manifests that have lost their last tag as well")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

func registryGCCommand() *cobra.Command {
	var dir, format string
	var o registry.CollectOptions
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "gc --dir DIR",
		Short: "Free what nothing in a registry refers to",
		Long: `Free what no manifest of a registry refers to, and unfinished uploads, after their
grace period. A registry that runs does that by itself (fre registry serve
--gc-interval); this is for one that does not.`,
		Args: args(cobra.NoArgs),
		RunE: interruptible(func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return errNoRegistryDir
			}
			if _, err := os.Stat(dir); err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			r, err := registry.Open(registry.Config{Dir: dir, Log: log, Grace: noGrace(grace)})
			if errors.Is(err, registry.ErrInUse) {
				return &hintError{err, "the registry that runs collects by itself: fre registry serve --gc-interval"}
			}
			if err != nil {
				return err
			}
			did, err := r.Collect(cmd.Context(), o)
			if err := errors.Join(err, r.Close()); err != nil {
				return err
			}
			if format != "" {
				return formatEach(cmd.OutOrStdout(), format, []registry.Collected{did})
			}
			verb := "freed"
			if o.DryRun {
				verb = "would free"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s: %d files, %d manifests, %d uploads, %d repositories\n", verb, size(did.Bytes), did.Files, did.Manifests, did.Uploads, did.Repositories)
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "`directory` that holds the registry")
	f.BoolVar(&o.Untagged, "untagged", false, "also manifests without a tag that no index and no subject keeps")
	f.BoolVar(&o.DryRun, "dry-run", false, "only say what would go")
	f.DurationVar(&grace, "grace", registry.DefaultGrace, "how long what nothing refers to is kept")
	f.StringVar(&format, "format", "", "`template` for the result: 'json', or Go's text/template such as '{{.Bytes}}'")
	return cmd
}

// noGrace converts a grace period for registry.Config, whose 0 means the default.
func noGrace(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// newLog logs to stderr.
func newLog(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level: %w", err)}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

// open opens a registry and its listener; the caller closes both.
func (c registryConfig) open(ctx context.Context, log *slog.Logger, metrics prometheus.Registerer) (*registry.Registry, net.Listener, error) {
	var users *registry.Users
	if c.Users != "" {
		var err error
		if users, err = registry.ReadUsers(c.Users, log); err != nil {
			return nil, nil, err
		}
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, nil, err
	}
	r, err := registry.Open(registry.Config{Dir: dir, Log: log, ReadOnly: c.ReadOnly, Users: users, Grace: noGrace(c.Grace), Metrics: metrics, Room: func() error { return linux.HasRoom(dir, 0) }})
	if err != nil {
		return nil, nil, err
	}
	l, err := registry.Listen(ctx, registry.ListenConfig{Address: c.Listen, CertFile: c.Cert, KeyFile: c.Key, Users: users != nil, Insecure: c.Insecure})
	if err != nil {
		err = errors.Join(err, r.Close())
		if errors.Is(err, registry.ErrExposed) {
			err = &hintError{err, "give a certificate, its key and a file of users, an address such as " + defaultRegistryListen + ", or say that it may be insecure"}
		}
		return nil, nil, err
	}
	return r, l, nil
}

// collect runs collections at each interval, until ctx ends.
func (c registryConfig) collect(ctx context.Context, r *registry.Registry, log *slog.Logger) {
	if c.Interval <= 0 || c.ReadOnly {
		return
	}
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	for {
		did, err := r.Collect(ctx, registry.CollectOptions{Untagged: c.Untagged})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.ErrorContext(ctx, "registry not collected", "error", err)
		case did != registry.Collected{}:
			log.InfoContext(ctx, "registry collected", "bytes", did.Bytes, "files", did.Files, "manifests", did.Manifests, "uploads", did.Uploads, "repositories", did.Repositories)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// serveRegistry runs a registry until ctx ends. stopSignals restores the default effect of signals,
// so that a second Ctrl-C ends the program at once.
func serveRegistry(ctx context.Context, stopSignals func(), cfg registryConfig, log *slog.Logger) (err error) {
	r, l, err := cfg.open(ctx, log, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	log.InfoContext(ctx, "registry ready", "address", l.Addr().String(), "directory", cfg.Dir, "tls", cfg.Cert != "", "users", cfg.Users != "", "read_only", cfg.ReadOnly)
	s := newHTTPServer(r, log)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ignoreClosed(s.Serve(l)) })
	group.Go(func() error {
		cfg.collect(ctx, r, log)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		stopSignals()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if s.Shutdown(drain) != nil {
			return s.Close() // clients resume their uploads at the next start
		}
		return nil
	})
	return group.Wait()
}

// registryServeConfig is the configuration file's registry.serve.
type registryServeConfig struct {
	Listen   string `yaml:"listen"`
	Dir      string `yaml:"dir"`
	Cert     string `yaml:"tls_cert"`
	Key      string `yaml:"tls_key"`
	Users    string `yaml:"users"`
	ReadOnly bool   `yaml:"read_only"`
	Insecure bool   `yaml:"insecure"`
	GC       struct {
		Interval string `yaml:"interval"`
		Grace    string `yaml:"grace"`
		Untagged bool   `yaml:"untagged"`
	} `yaml:"gc"`
}

// read returns the section's configuration, nil without the section.
func (c *registryServeConfig) read() (*registryConfig, error) {
	if c == nil {
		return nil, nil
	}
	if c.Listen == "" {
		return nil, fmt.Errorf("listen: give an address such as %s", defaultRegistryListen)
	}
	cfg := &registryConfig{
		Dir: c.Dir, Listen: c.Listen, Cert: c.Cert, Key: c.Key, Users: c.Users, ReadOnly: c.ReadOnly, Insecure: c.Insecure,
		Untagged: c.GC.Untagged, Interval: defaultRegistryInterval, Grace: registry.DefaultGrace,
	}
	for _, d := range []struct {
		key, src string
		to       *time.Duration
	}{{"interval", c.GC.Interval, &cfg.Interval}, {"grace", c.GC.Grace, &cfg.Grace}} {
		if d.src == "" {
			continue
		}
		v, err := time.ParseDuration(d.src)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("gc.%s: %q is no duration such as 24h", d.key, d.src)
		}
		*d.to = v
	}
	return cfg, nil
}
