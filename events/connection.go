package events

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// connect connects to the server in the process or, with e nil, to the cluster. The cluster may be
// down: the connection is then made later.
func connect(cfg *Config, e *embedded) (*nats.Conn, error) {
	opts := []nats.Option{
		nats.Name("fre"), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.ReconnectBufSize(-1), // while disconnected, publishing fails at once
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				cfg.Log.Warn("events: connection to NATS lost", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			cfg.Log.Debug("events: NATS", "error", err)
		}),
	}
	if e != nil {
		opts = append(opts, nats.InProcessServer(e), nats.UserInfo(cfg.User, cfg.Password), nats.Timeout(serverPatience))
		return nats.Connect("", opts...)
	}
	if cfg.Credentials != "" {
		opts = append(opts, nats.UserCredentials(cfg.Credentials))
	}
	// A cut network reports no error. Two pings without an answer show the cut.
	opts = append(opts, nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2))
	nc, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.URL, err)
	}
	return nc, nil
}

const pingEvery = 2 * time.Second

// Dial makes another connection to the cluster of cfg, with the same options as Open.
func Dial(cfg *Config) (*nats.Conn, error) { return connect(cfg, nil) }
