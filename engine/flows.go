package engine

import (
	"context"
	"fmt"
	"sync"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/internal/waiting"
)

// mostFlowsWait is how many events of a function may wait for a slot for a flowing body.
const mostFlowsWait = 1024

// flows counts a function's events with flowing bodies.
type flows struct {
	mu      sync.Mutex
	n       int
	waiting waiting.Queue[struct{}, struct{}]
}

// enter waits until fewer than half of the function's slots serve flowing bodies.
func (s *flows) enter(ctx context.Context, p *program) error {
	most := max(1, p.capacity()/2)
	s.mu.Lock()
	switch {
	case s.n < most:
		s.n++
		s.mu.Unlock()
		return nil
	case s.waiting.Len() >= mostFlowsWait:
		s.mu.Unlock()
		p.host.metrics.refuse(admission.QueueLength)
		return fmt.Errorf("%w: too many requests with unfinished bodies; retry later, or send a Content-Length", ErrOverloaded)
	}
	turn := s.waiting.Push(struct{}{})
	s.mu.Unlock()
	_, err := turn.Wait(ctx, &s.mu, func(struct{}) { s.leave() })
	return err
}

// leave gives the slot to the next waiting event.
func (s *flows) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting.Len() == 0 {
		s.n--
		return
	}
	s.waiting.Grant(struct{}{})
}
