package events

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// Engine is the part of *engine.Engine that the package needs.
type Engine interface {
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
	Function(name string) (*engine.Function, error)
	Room(name string) int // how many more events of the function the engine can run now
}

// Defaults of [Config].
const (
	DefaultStoreBytes = 8 << 30
	DefaultQueueBytes = 1 << 30
)

// Config wires a Service. Engine, Log and Dir are required.
type Config struct {
	Engine  Engine
	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: none
	Dir     string                // for the streams, and for bodies too large for a message

	// For an external server or cluster, instead of the server in this process.
	URL         string // nats://host:4222, several separated by commas; "": the server in the process
	Credentials string // path of a credentials file of the nats tools; "": none
	Replicas    int    // of streams that FRE creates in the cluster; default 1

	// For the server in the process. Without Listen the server has no socket.
	Listen   string // HOST:PORT
	User     string // required with Listen
	Password string // required with Listen

	StoreBytes   int64         // of all streams in the in-process server; default DefaultStoreBytes
	MinFreeBytes int64         // with less space free below Dir, Publish refuses events; default 64 MiB
	MaxEvent     int64         // bytes of an event's body; default 64 MiB
	MaxQueue     int64         // waiting events of each tenant; default 100,000
	QueueBytes   int64         // of each stream of a tenant, without large bodies; default DefaultQueueBytes
	BodyBytes    int64         // of all large bodies; default 4 GiB
	Concurrency  int           // events that run at once; default 32 for each CPU
	MaxResults   int64         // most results, and most dead letters, of each tenant; default 100,000
	KeepDead     time.Duration // how long dead letters are kept; default 7 days
	Patience     time.Duration // how long a request to NATS, or one write, may take; default 10 seconds
	Callbacks    Callbacks
	Subjects     Subjects // of NATS that tenants' triggers may subscribe to

	// Elsewhere reports whether another node on the same URL has a function that Engine does not
	// have. Events of the function then wait for the node and do not become dead letters. nil: the
	// engine is the only node.
	Elsewhere func(function string) bool

	making *sync.Mutex // see Service; nodes of one test share it, as their server is in the process
}

func (c *Config) setDefaults() {
	c.StoreBytes = cmp.Or(c.StoreBytes, DefaultStoreBytes)
	c.MinFreeBytes = cmp.Or(c.MinFreeBytes, 64<<20)
	c.MaxEvent = cmp.Or(c.MaxEvent, 64<<20)
	c.MaxQueue = cmp.Or(c.MaxQueue, 100_000)
	c.QueueBytes = cmp.Or(c.QueueBytes, DefaultQueueBytes)
	c.BodyBytes = cmp.Or(c.BodyBytes, 4<<30)
	c.MaxResults = cmp.Or(c.MaxResults, 100_000)
	c.Concurrency = cmp.Or(c.Concurrency, 32*runtime.GOMAXPROCS(0))
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.KeepDead = cmp.Or(c.KeepDead, 7*24*time.Hour)
	c.Patience = cmp.Or(c.Patience, 10*time.Second)
}

// external reports whether other nodes may share the server.
func (c *Config) external() bool { return c.URL != "" }

// elsewhere reports whether another node has a function that Engine does not have.
func (c *Config) elsewhere(function string) bool {
	if c.Elsewhere == nil {
		return false
	}
	_, err := c.Engine.Function(function)
	return err != nil && c.Elsewhere(function)
}

// settings returns the settings for events, and the time limit, of the function's current
// deployment.
func (c *Config) settings(function string) (template.Events, time.Duration, error) {
	f, err := c.Engine.Function(function)
	if err != nil {
		return template.Events{}, 0, err
	}
	return f.Config.EventSettings(), f.Config.Resources.Timeout, nil
}
