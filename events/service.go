package events

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// longestResult caps the time for which a template may have results kept.
const longestResult = 7 * 24 * time.Hour

// Service accepts events and runs them. A Service is safe for concurrent use.
type Service struct {
	cfg        Config
	embedded   *embedded // nil: the server is external
	nc         *nats.Conn
	js         jetstream.JetStream
	streams    *streams
	bodies     *bodies
	deliveries *deliveries
	senders    *senders
	runner     *runner
	queues     *queues
	turns      *turns
	index      *index
	metrics    *metrics
	origin     string      // random name of this process in messages between nodes
	teller     *teller     // sends this process's changes to the other nodes; nil: the only node
	again      atomic.Bool // the connection was lost, so streams may hold events unknown here

	tasks *tasks
	live  context.Context // until Close
	end   context.CancelFunc
	brief context.Context // until Close has waited for as long as allowed
	cut   context.CancelFunc
}

// Addr returns the address of the server in the process, "" without a socket.
func (s *Service) Addr() string {
	if s.embedded == nil {
		return ""
	}
	if a := s.embedded.addr(); a != nil {
		return a.String()
	}
	return ""
}

// begin adds work for a tenant to s.tasks; the caller calls done. The error says why no work can
// start now.
func (s *Service) begin(tenant string) error {
	if err := s.ready(tenant); err != nil {
		return err
	}
	if !s.tasks.begin() {
		return errStopping()
	}
	return nil
}

// ready returns an error if the service cannot store events now.
func (s *Service) ready(tenant string) error {
	if s.nc.Status() != nats.CONNECTED {
		return refuse(ErrUnavailable, "the engine cannot reach NATS")
	}
	if s.embedded != nil && s.embedded.broken.Load() {
		return refuse(ErrStorage, "JetStream found the disk full, and restarts when the disk has space")
	}
	if freeBytes(s.cfg.Dir) < s.cfg.MinFreeBytes {
		return refuse(ErrStorage, "less than %d bytes are free", s.cfg.MinFreeBytes)
	}
	if s.embedded == nil {
		return nil
	}
	if own, all := s.embedded.stored(tenant); own > s.cfg.StoreBytes-all {
		return refuse(ErrStorage, "the tenant's events, results and dead letters take %d bytes, all tenants' %d of store_bytes, %d: a tenant may have as much as is left", own, all, s.cfg.StoreBytes)
	}
	return nil
}
