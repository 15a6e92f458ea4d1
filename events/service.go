package events

import (
	"context"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Service accepts events and runs them. A Service is safe for concurrent use.
type Service struct {
	*health

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
	if a := s.embedded.Addr(); a != nil {
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
