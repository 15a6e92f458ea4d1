package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/events/trigger"
	"github.com/fre-engine/fre/template"
)

// eventsConfig is the configuration file's events.
type eventsConfig struct {
	Off          bool   `yaml:"off"`
	NATS         string `yaml:"nats"`
	Credentials  string `yaml:"credentials"`
	Replicas     *int   `yaml:"replicas"`
	Listen       string `yaml:"listen"`
	User         string `yaml:"user"`
	PasswordFile string `yaml:"password_file"`

	Concurrency *int            `yaml:"concurrency"`
	MaxEvent    string          `yaml:"max_event"`
	MaxQueue    *int            `yaml:"max_queue"`
	MaxResults  *int            `yaml:"max_results"`
	QueueBytes  string          `yaml:"queue_bytes"`
	BodyBytes   string          `yaml:"body_bytes"`
	Subjects    events.Subjects `yaml:"subjects"`

	StoreBytes string `yaml:"store_bytes"`
	MinFree    string `yaml:"min_free"`
	KeepDead   string `yaml:"keep_dead"`

	Callbacks struct {
		Hosts      []string `yaml:"hosts"`
		Networks   []string `yaml:"networks"`
		SecretFile string   `yaml:"secret_file"`
	} `yaml:"callbacks"`
}

// read copies the given fields; the rest keep their defaults.
func (e *eventsConfig) read(cfg *Config) error {
	to := &cfg.Events
	cfg.EventsOff = e.Off
	for _, read := range []func(*events.Config) error{e.readServer, e.readNumbers, e.readSizes} {
		if err := read(to); err != nil {
			return err
		}
	}
	if e.KeepDead != "" {
		d, err := time.ParseDuration(e.KeepDead)
		if err != nil || d < time.Minute {
			return fmt.Errorf("keep_dead: %q is not a duration of at least a minute, for example 168h", e.KeepDead)
		}
		to.KeepDead = d
	}
	if err := e.Subjects.Check(); err != nil {
		return fmt.Errorf("subjects.%w", err)
	}
	to.Subjects = e.Subjects
	return e.readCallbacks(&to.Callbacks)
}

// readServer reads where the queue is: in a cluster of NATS servers, or in the engine.
func (e *eventsConfig) readServer(to *events.Config) error {
	to.URL, to.Credentials, to.Listen, to.User = e.NATS, e.Credentials, e.Listen, e.User
	if err := e.checkServer(); err != nil || e.Listen == "" {
		return err
	}
	if _, _, err := net.SplitHostPort(e.Listen); err != nil {
		return fmt.Errorf("listen: %q is no HOST:PORT", e.Listen)
	}
	password, err := readSecret(e.PasswordFile)
	if err != nil {
		return fmt.Errorf("password_file: %w", err)
	}
	to.Password = string(password)
	return nil
}

// checkServer refuses settings of a cluster and of the engine's own server that exclude or need
// each other.
func (e *eventsConfig) checkServer() error {
	switch {
	case e.Credentials != "" && e.NATS == "":
		return errors.New("credentials: only for a NATS cluster: set nats too")
	case e.Replicas != nil && e.NATS == "":
		return errors.New("replicas: only for a NATS cluster: set nats too")
	case e.Listen != "" && e.NATS != "":
		return errors.New("listen: not together with nats: the engine runs no server then")
	case e.Listen != "":
		if e.User == "" || e.PasswordFile == "" {
			return errors.New("listen: user and password_file are needed too")
		}
	case e.User != "" || e.PasswordFile != "":
		return errors.New("user: only for listen: set listen too")
	}
	return nil
}

func (e *eventsConfig) readNumbers(to *events.Config) error {
	for _, n := range []struct {
		field string
		value *int
		most  int
		set   func(int)
	}{
		{"replicas", e.Replicas, 5, func(n int) { to.Replicas = n }},
		{"concurrency", e.Concurrency, 100_000, func(n int) { to.Concurrency = n }},
		{"max_queue", e.MaxQueue, 100_000_000, func(n int) { to.MaxQueue = int64(n) }},
		{"max_results", e.MaxResults, 100_000_000, func(n int) { to.MaxResults = int64(n) }},
	} {
		if n.value == nil {
			continue
		}
		if *n.value < 1 || *n.value > n.most {
			return fmt.Errorf("%s: %d is not between 1 and %d", n.field, *n.value, n.most)
		}
		n.set(*n.value)
	}
	return nil
}

func (e *eventsConfig) readSizes(to *events.Config) error {
	for _, n := range []struct {
		field, value string
		to           *int64
	}{
		{"max_event", e.MaxEvent, &to.MaxEvent},
		{"queue_bytes", e.QueueBytes, &to.QueueBytes},
		{"body_bytes", e.BodyBytes, &to.BodyBytes},
		{"store_bytes", e.StoreBytes, &to.StoreBytes},
		{"min_free", e.MinFree, &to.MinFreeBytes},
	} {
		if n.value == "" {
			continue
		}
		size, err := template.ParseBytes(n.value)
		if err != nil || size < 1<<10 {
			return fmt.Errorf("%s: %q is no size of 1KiB or more", n.field, n.value)
		}
		*n.to = size
	}
	store, queue := cmp.Or(to.StoreBytes, events.DefaultStoreBytes), cmp.Or(to.QueueBytes, events.DefaultQueueBytes)
	if e.NATS == "" && store < 2*queue {
		return fmt.Errorf("store_bytes: %d is less than twice queue_bytes (%d): a tenant may use half of store_bytes at most", store, queue)
	}
	return nil
}

// checkTriggers refuses triggers that no event can ever reach, and queues of other tenants'
// triggers.
func (cfg *Config) checkTriggers(tenant string, all []template.Trigger) error {
	for i := range all {
		m := all[i].NATS
		if m == nil {
			if all[i].Files != nil && cfg.EventsOff {
				return &template.FieldError{Field: fmt.Sprintf("triggers[%d].files", i), Message: "events are off in the engine's configuration"}
			}
			continue
		}
		err := cfg.Events.Subjects.Allow(tenant, m.Subject)
		switch {
		case err != nil:
		case cfg.EventsOff:
			err = errors.New("events are off in the engine's configuration")
		case cfg.Events.URL == "" && cfg.Events.Listen == "":
			err = events.ErrNoOutside
		case strings.HasPrefix(m.Queue, "fre-"): // another tenant's trigger could use this queue
			err = fmt.Errorf("queue %s: names beginning with fre- are reserved for triggers", m.Queue)
		}
		if err != nil {
			return &template.FieldError{Field: fmt.Sprintf("triggers[%d].nats", i), Message: err.Error()}
		}
	}
	return nil
}

func (e *eventsConfig) readCallbacks(to *events.Callbacks) (err error) {
	c := &e.Callbacks
	for i, h := range c.Hosts {
		name := strings.TrimPrefix(h, "*.")
		if name == "" || strings.ContainsAny(name, "/:* ") || h != strings.ToLower(h) {
			return fmt.Errorf(`callbacks.hosts[%d]: %q is not a host name or pattern, for example "hooks.example.org" or "*.example.org"`, i, h)
		}
	}
	to.Hosts = slices.Clone(c.Hosts)
	if to.Networks, err = parseRanges("callbacks.networks", c.Networks); err != nil {
		return err
	}
	if len(to.Hosts)+len(to.Networks) == 0 && c.SecretFile == "" {
		return nil
	}
	if to.Secret, err = readSecret(c.SecretFile); err != nil {
		return fmt.Errorf("callbacks.secret_file: %w", err)
	}
	if len(to.Secret) < 16 {
		return errors.New("callbacks.secret_file: less than 16 bytes")
	}
	return nil
}

// readSecret reads a file, without trailing newlines.
func readSecret(path string) ([]byte, error) {
	if path == "" {
		return nil, errors.New("no file is named")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if b = bytes.TrimRight(b, "\r\n"); len(b) == 0 {
		return nil, fmt.Errorf("%s is empty", path)
	}
	return b, nil
}

// openEvents opens the queue of asynchronous events. Without a queue the engine answers synchronous
// events only, and refuses the others.
func (d *Daemon) openEvents(ctx context.Context) error {
	cfg := &d.cfg.Events
	if d.cfg.EventsOff {
		d.accepts = trigger.Down{Err: errors.New("events are off in the engine's configuration")}
		return nil
	}
	if cfg.Engine == nil {
		cfg.Engine = d.engine
	}
	cfg.Log, cfg.Metrics, cfg.Dir = d.log, d.metrics, filepath.Join(d.cfg.State, "events")
	queue, err := events.Open(*cfg)
	if err != nil {
		d.log.ErrorContext(ctx, "events are refused: the queue failed to open", "error", err)
		d.accepts = trigger.Down{Err: errors.New("the queue of events did not open; the engine's log says why")}
		return nil
	}
	d.undo.add(func() error { return queue.Close(context.WithoutCancel(ctx)) })
	if addr := queue.Addr(); addr != "" {
		d.log.InfoContext(ctx, "NATS ready", "address", addr)
	}
	d.queue = queue
	d.triggers = trigger.New(trigger.Config{
		Engine: d.engine, Events: queue, Admit: d.records.Event, Secrets: d.records, Log: d.log,
		Changed: func() uint64 { return d.engine.Changes().Generation() },
	})
	d.accepts = d.triggers
	return nil
}
