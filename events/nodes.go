package events

import (
	"crypto/rand"

	"github.com/nats-io/nats.go"
)

// Nodes on one cluster pull from the same consumers, so a node may run an event that another node
// accepted. Each node tells the rest how events change, by
//
//	fre.state.NODE   one or more changes (tell.go)
//
// over core NATS, which may lose messages: no event depends on them. Lists, limits and tail across
// all nodes are made from the changes. Service.reconcile asks the streams about changes that were
// lost, or have an unknown version.
const stateSubject = "fre.state."

// joinNodes subscribes to other nodes' changes, and has this node's changes sent to them.
func (s *Service) joinNodes() error {
	s.origin = rand.Text()
	s.teller = &teller{send: func(b []byte) { _ = s.nc.Publish(stateSubject+s.origin, b) }} // fails with the connection; reconcile repairs
	s.index.share = s.teller.tell
	_, err := s.nc.Subscribe(stateSubject+"*", func(msg *nats.Msg) {
		if msg.Subject != stateSubject+s.origin {
			s.hear(msg.Data)
		}
	})
	return err
}

// hear applies another node's changes.
func (s *Service) hear(b []byte) {
	if len(b) == 0 || b[0] != wireVersion {
		s.cfg.Log.Debug("events: another node's changes have an unknown version")
		return
	}
	var e Entry
	var err error
	for b = b[1:]; len(b) > 0; {
		e, b, err = readChange(b, &e)
		if err != nil {
			s.cfg.Log.Debug("events: another node's change is not understood", "error", err)
			return
		}
		if s.index.heard(e) && s.live.Err() == nil {
			s.queues.start(e)
		}
	}
}
