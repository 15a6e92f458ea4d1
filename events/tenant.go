package events

import (
	"context"

	"github.com/fre-engine/fre/template"
)

// RemoveTenant forgets all events of a tenant, their results and dead letters. The caller has
// removed the tenant's functions before, so that none of the events runs. Events that still run end
// first: their results would make the streams anew.
func (s *Service) RemoveTenant(ctx context.Context, tenant string) error {
	if !template.ValidName(tenant) {
		return nil
	}
	defer s.queues.endRemoval(tenant)
	for _, q := range s.queues.beginRemoval(tenant) {
		q.end()
		select {
		case <-q.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := s.streams.removeTenant(ctx, tenant); err != nil {
		return err
	}
	for _, e := range s.index.all(func(e *Entry) bool { return e.Tenant == tenant }) {
		s.index.drop(e.ID)
	}
	return nil
}
