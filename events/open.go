package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Open starts the server in the process, or connects to the server at cfg.URL, and continues the
// events that an earlier engine left.
func Open(cfg Config) (_ *Service, err error) {
	cfg.setDefaults()
	if err := cfg.Callbacks.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make %s: %w", cfg.Dir, err)
	}
	s := &Service{cfg: cfg, tasks: &tasks{}, turns: newTurns(cfg.Concurrency), index: newIndex()}
	s.deliveries = &deliveries{log: cfg.Log, opened: time.Now(), hands: newHands()}
	s.live, s.end = context.WithCancel(context.Background())
	s.brief, s.cut = context.WithCancel(context.Background())
	if s.bodies, err = openBodies(&s.cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.disconnect())
		}
	}()
	if err := s.connect(); err != nil {
		return nil, err
	}
	s.assemble()
	if cfg.external() {
		s.nc.SetReconnectHandler(func(*nats.Conn) { s.again.Store(true) })
		if err := s.joinNodes(); err != nil {
			return nil, err
		}
	}
	s.tasks.start(s.scan)
	return s, nil
}

// connect starts the server in the process, unless the server is external, and connects.
func (s *Service) connect() (err error) {
	if !s.cfg.external() {
		if s.deliveries.attempts, err = openAttempts(filepath.Join(s.cfg.Dir, "attempts"), s.deliveries.opened); err != nil {
			return err
		}
		if s.embedded, err = startEmbedded(&s.cfg); err != nil {
			return err
		}
	}
	if s.nc, err = connect(&s.cfg, s.embedded); err != nil {
		return err
	}
	s.js, err = jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(4096), jetstream.WithPublishAsyncTimeout(s.cfg.Patience), jetstream.WithDefaultTimeout(s.cfg.Patience))
	return err
}

// disconnect undoes connect, even if connect has failed.
func (s *Service) disconnect() error {
	if s.nc != nil {
		s.nc.Close()
	}
	if s.embedded != nil {
		s.embedded.Close()
	}
	if s.deliveries.attempts != nil {
		return s.deliveries.attempts.Close()
	}
	return nil
}

// assemble makes the parts that use the connection.
func (s *Service) assemble() {
	s.streams = newStreams(&s.cfg, s.nc, s.js, s.tasks)
	s.health = &health{cfg: &s.cfg, nc: s.nc, embedded: s.embedded, index: s.index, bodies: s.bodies}
	s.metrics = newMetrics(s.cfg.Metrics, s.index, s.bodies)
	s.senders = &senders{
		cfg: &s.cfg, live: s.live, tasks: s.tasks, streams: s.streams, bodies: s.bodies, deliveries: s.deliveries, metrics: s.metrics,
		slots: make(chan struct{}, callbacksAtOnce), ordered: map[string]bool{},
	}
	s.runner = &runner{
		cfg: &s.cfg, live: s.live, streams: s.streams, bodies: s.bodies, index: s.index, deliveries: s.deliveries, turns: s.turns, metrics: s.metrics,
		senders: s.senders,
	}
	s.queues = &queues{
		cfg: &s.cfg, live: s.live, tasks: s.tasks, streams: s.streams, index: s.index, turns: s.turns, runner: s.runner,
		running: map[queueKey]*queue{}, removing: map[string]int{},
	}
}

// Close stops new work and waits until the running attempts have ended. When ctx ends, Close also
// interrupts bodies that are being read, and returns ctx's cause after the remaining attempts have
// ended. Events that have not ended run again after the next Open.
func (s *Service) Close(ctx context.Context) error {
	if !s.tasks.end() {
		return nil
	}
	s.end()
	done := make(chan struct{})
	go func() {
		s.tasks.wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.cut()
	if s.teller != nil {
		s.teller.flush()
	}
	_ = s.nc.FlushWithContext(ctx) // the last acknowledgements; an event whose acknowledgement is lost runs again
	s.nc.Close()
	<-done
	return errors.Join(err, s.disconnect())
}
