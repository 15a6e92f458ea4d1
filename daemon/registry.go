package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/registry"
)

// Registry configures a registry: directory, address, users and collections.
type Registry struct {
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

// DefaultGrace is the default of Registry.Grace in Flags.
const DefaultGrace = registry.DefaultGrace

// Collected is the result of a collection.
type Collected = registry.Collected

// noGrace converts a grace period for registry.Config, whose 0 means the default.
func noGrace(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// open opens a registry and its listener; the caller closes both.
func (c Registry) open(ctx context.Context, log *slog.Logger, metrics prometheus.Registerer) (*registry.Registry, net.Listener, error) {
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
			err = failure.Hint(err, "give a certificate with key and a file of users, or an address like "+defaultRegistryListen+", or allow insecure access")
		}
		return nil, nil, err
	}
	return r, l, nil
}

// Collect frees the files of a registry that no process serves. A dry run removes nothing.
func (c Registry) Collect(ctx context.Context, dry bool, log *slog.Logger) (Collected, error) {
	r, err := registry.Open(registry.Config{Dir: c.Dir, Log: log, Grace: noGrace(c.Grace)})
	if errors.Is(err, registry.ErrInUse) {
		return Collected{}, failure.Hint(err, "the running registry collects garbage regularly: fre registry serve --gc-interval")
	}
	if err != nil {
		return Collected{}, err
	}
	did, err := r.Collect(ctx, registry.CollectOptions{Untagged: c.Untagged, DryRun: dry})
	return did, errors.Join(err, r.Close())
}

// collectEach runs collections at each interval, until ctx ends.
func (c Registry) collectEach(ctx context.Context, r *registry.Registry, log *slog.Logger) {
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

// Serve runs a registry until ctx ends. stopSignals restores the default effect of signals, so that a
// second Ctrl-C ends the program at once.
func (c Registry) Serve(ctx context.Context, stopSignals func(), log *slog.Logger) (err error) {
	r, l, err := c.open(ctx, log, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	log.InfoContext(ctx, "registry ready", "address", l.Addr().String(), "directory", c.Dir, "tls", c.Cert != "", "users", c.Users != "", "read_only", c.ReadOnly)
	s := newHTTPServer(r, log)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ignoreClosed(s.Serve(l)) })
	group.Go(func() error {
		c.collectEach(ctx, r, log)
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

// registryPart serves a registry beside the engine.
type registryPart struct{ cleanup }

func newRegistry() part { return &registryPart{} }

// Open opens the registry and starts its collections.
func (p *registryPart) Open(ctx context.Context, d *Daemon) error {
	c := d.cfg.Registry
	c.Dir = cmp.Or(c.Dir, filepath.Join(d.cfg.State, "registry"))
	r, l, err := c.open(ctx, d.log, d.metrics)
	if err != nil {
		return fmt.Errorf("%s: registry.serve: %w", d.cfg.ConfigFile, err)
	}
	p.add(r.Close)
	p.addListener(l)
	collecting, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.collectEach(collecting, r, d.log)
	}()
	p.add(func() error {
		stop()
		<-done
		return nil
	})
	d.answer(l, newHTTPServer(r, d.log))
	d.log.InfoContext(ctx, "registry ready", "address", l.Addr().String(), "directory", c.Dir)
	return nil
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

// read copies the section; cfg.Registry is nil without the section.
func (c *registryServeConfig) read(cfg *Config) error {
	if c == nil {
		return nil
	}
	if c.Listen == "" {
		return fmt.Errorf("listen: give an address, for example %s", defaultRegistryListen)
	}
	to := &Registry{
		Dir: c.Dir, Listen: c.Listen, Cert: c.Cert, Key: c.Key, Users: c.Users, ReadOnly: c.ReadOnly, Insecure: c.Insecure,
		Untagged: c.GC.Untagged, Interval: defaultRegistryInterval, Grace: registry.DefaultGrace,
	}
	for _, d := range []struct {
		key, src string
		to       *time.Duration
	}{{"interval", c.GC.Interval, &to.Interval}, {"grace", c.GC.Grace, &to.Grace}} {
		if d.src == "" {
			continue
		}
		v, err := time.ParseDuration(d.src)
		if err != nil || v < 0 {
			return fmt.Errorf("gc.%s: %q is not a duration, for example 24h", d.key, d.src)
		}
		*d.to = v
	}
	cfg.Registry = to
	return nil
}
