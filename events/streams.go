package events

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/template"
)

// kind is the content of a stream. Each tenant has a stream of each kind, made on first need, so
// that one tenant's data never takes another tenant's space.
type kind struct {
	stream string // name, before the tenant
	word   string // subjects are fre.WORD.TENANT.…

	// Earlier versions have one stream for all tenants, with fre.SHAREDWORD.TENANT.…. Its messages
	// are still read, and its orders sent, as long as they are kept.
	shared, sharedWord string
}

var (
	kindQueue   = kind{stream: "FRE_EVENTS_", word: "events"}
	kindResults = kind{stream: "FRE_RESULTS_", word: "result", shared: "FRE_RESULTS", sharedWord: "results"}
	kindDead    = kind{stream: "FRE_DEAD_", word: "letter", shared: "FRE_DEAD", sharedWord: "dead"}
	kindOrders  = kind{stream: "FRE_CALLBACKS_", word: "order", shared: "FRE_CALLBACKS", sharedWord: "callbacks"}

	kinds = []kind{kindQueue, kindResults, kindDead, kindOrders}
)

// of returns the name of a tenant's stream.
func (k kind) of(tenant string) string { return k.stream + tenant }

// subject returns the subject of one event.
func (k kind) subject(tenant, function, id string) string {
	return endSubject(k.word, tenant, function, id)
}

// kindOf returns the kind and the tenant of a stream by its name; tenant "" means all tenants.
func kindOf(stream string) (k kind, tenant string, ok bool) {
	for _, k := range kinds {
		if tenant, ok := strings.CutPrefix(stream, k.stream); ok {
			return k, tenant, true
		}
		if stream == k.shared {
			return k, "", true
		}
	}
	return kind{}, "", false
}

// config returns the configuration that a tenant's stream must have.
func (s *Service) config(k kind, tenant string) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name: k.of(tenant), Subjects: []string{"fre." + k.word + "." + tenant + ".>"}, Storage: jetstream.FileStorage, Replicas: s.cfg.Replicas,
		MaxBytes: s.cfg.QueueBytes, AllowDirect: true, AllowAtomicPublish: true,
	}
	switch k {
	case kindQueue:
		cfg.Description = "FRE: events of tenant " + tenant + " waiting"
		cfg.Retention, cfg.Discard, cfg.MaxMsgs, cfg.Duplicates = jetstream.WorkQueuePolicy, jetstream.DiscardNew, s.cfg.MaxQueue, 2*time.Minute
	case kindOrders:
		cfg.Description = "FRE: results of tenant " + tenant + " to send"
		cfg.Retention, cfg.Discard, cfg.MaxMsgs = jetstream.WorkQueuePolicy, jetstream.DiscardNew, s.cfg.MaxQueue
	case kindResults:
		cfg.Description = "FRE: results of tenant " + tenant + "'s events"
		cfg.Discard, cfg.MaxMsgs, cfg.MaxMsgsPerSubject, cfg.MaxAge, cfg.AllowMsgTTL = jetstream.DiscardOld, s.cfg.MaxResults, 1, longestResult, true
	case kindDead:
		cfg.Description = "FRE: events of tenant " + tenant + " without further attempts"
		cfg.Discard, cfg.MaxMsgs, cfg.MaxMsgsPerSubject, cfg.MaxAge = jetstream.DiscardOld, s.cfg.MaxResults, 1, s.cfg.KeepDead
	}
	return cfg
}

// stream returns the writer of a tenant's stream, and makes the stream if missing.
func (s *Service) stream(ctx context.Context, k kind, tenant string) (*committer, error) {
	return s.ensure(ctx, k, tenant, s.js.CreateOrUpdateStream)
}

// ensure calls by, once for each process, so that a tenant's stream matches config.
func (s *Service) ensure(ctx context.Context, k kind, tenant string, by func(context.Context, jetstream.StreamConfig) (jetstream.Stream, error)) (*committer, error) {
	name := k.of(tenant)
	if c := s.knownStream(name); c != nil {
		return c, nil
	}
	s.making.Lock()
	defer s.making.Unlock()
	if c := s.knownStream(name); c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Patience)
	defer cancel()
	if _, err := by(ctx, s.config(k, tenant)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[name] = &committer{s: s}
	return s.streams[name], nil
}

func (s *Service) knownStream(name string) *committer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[name]
}

// put writes to a tenant's stream; see committer.put.
func (s *Service) put(ctx context.Context, k kind, tenant string, msg *nats.Msg) (seq uint64, duplicate bool, err error) {
	for again := false; ; again = true {
		c, err := s.stream(ctx, k, tenant)
		if err != nil {
			return 0, false, fault(err)
		}
		seq, duplicate, err = c.put(msg)
		if again || !errors.Is(err, jetstream.ErrNoStreamResponse) {
			return seq, duplicate, fault(err)
		}
		s.mu.Lock()
		if s.streams[k.of(tenant)] == c { // another client deleted the stream: make it anew
			delete(s.streams, k.of(tenant))
		}
		s.mu.Unlock()
	}
}

// holder is a stream that may hold the result, dead letter or order of an event.
type holder struct{ stream, word string }

// holders returns the streams of a tenant, or of all tenants for "".
func (s *Service) holders(ctx context.Context, k kind, tenant string) ([]holder, error) {
	var all []holder
	if tenant != "" {
		all = append(all, holder{k.of(tenant), k.word})
	} else {
		names := s.js.StreamNames(ctx, jetstream.WithStreamListSubject("fre."+k.word+".>"))
		for name := range names.Name() {
			all = append(all, holder{name, k.word})
		}
		if err := names.Err(); err != nil {
			return nil, fault(err)
		}
	}
	if s.shared.Load() {
		all = append(all, holder{k.shared, k.sharedWord})
	}
	return all, nil
}

// lookups bounds how many streams are asked at once for an event.
const lookups = 32

// lastEnd reads the newest result or dead letter of an event. An empty tenant or function matches
// all. The error is ErrNotFound if no stream has a result or dead letter.
func (s *Service) lastEnd(ctx context.Context, k kind, tenant, function, id string) (*message, error) {
	all, err := s.holders(ctx, k, tenant)
	if err != nil {
		return nil, err
	}
	found := make(chan *message, len(all))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lookups)
	for _, h := range all {
		group.Go(func() error {
			m, err := s.lastOf(ctx, h.stream, endSubject(h.word, tenant, function, id))
			if err == nil {
				found <- m
			}
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			return err
		})
	}
	err = group.Wait()
	close(found)
	var last *message
	for m := range found {
		if last == nil || m.Changed.After(last.Changed) {
			last = m
		}
	}
	switch {
	case last != nil:
		return last, nil
	case err != nil:
		return nil, err
	}
	return nil, ErrNotFound
}

// lastOf reads the last message of a subject.
func (s *Service) lastOf(ctx context.Context, stream, subject string) (*message, error) {
	st, err := s.js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fault(err)
	}
	raw, err := st.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fault(err)
	}
	m, err := decode(raw.Subject, raw.Header, raw.Data)
	if err != nil {
		return nil, err
	}
	m.Changed, m.seq, m.stream = raw.Time.UTC(), raw.Sequence, stream
	return m, nil
}

// forget removes an event's messages of one kind.
func (s *Service) forget(ctx context.Context, k kind, tenant, function, id string) error {
	all, err := s.holders(ctx, k, tenant)
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := s.purge(ctx, h.stream, endSubject(h.word, tenant, function, id)); err != nil {
			return err
		}
	}
	return nil
}

// purge removes the messages of a subject from a stream; a missing stream is no error.
func (s *Service) purge(ctx context.Context, stream, subject string) error {
	st, err := s.js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err == nil {
		err = st.Purge(ctx, jetstream.WithPurgeSubject(subject))
	}
	return fault(err)
}

// endIDs returns the ids of all events with a result or a dead letter.
func (s *Service) endIDs(ctx context.Context) (map[string]bool, error) {
	ids := map[string]bool{}
	for _, k := range []kind{kindResults, kindDead} {
		all, err := s.holders(ctx, k, "")
		if err != nil {
			return nil, err
		}
		for _, h := range all {
			st, err := s.js.Stream(ctx, h.stream)
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				continue
			}
			if err != nil {
				return nil, fault(err)
			}
			info, err := st.Info(ctx, jetstream.WithSubjectFilter(">"))
			if err != nil {
				return nil, fault(err)
			}
			for subject := range info.State.Subjects {
				ids[subject[strings.LastIndexByte(subject, '.')+1:]] = true
			}
		}
	}
	return ids, nil
}

// RemoveTenant forgets all events of a tenant, their results and dead letters. The caller has
// removed the tenant's functions before, so that none of the events runs. Events that still run end
// first: their results would make the streams anew.
func (s *Service) RemoveTenant(ctx context.Context, tenant string) error {
	if !template.ValidName(tenant) {
		return nil
	}
	defer s.endRemoval(tenant)
	for _, q := range s.beginRemoval(tenant) {
		q.end()
		select {
		case <-q.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.making.Lock()
	defer s.making.Unlock()
	for _, k := range kinds {
		if err := s.js.DeleteStream(ctx, k.of(tenant)); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fault(err)
		}
		if k.shared != "" {
			if err := s.purge(ctx, k.shared, "fre."+k.sharedWord+"."+tenant+".>"); err != nil {
				return err
			}
		}
		s.mu.Lock()
		delete(s.streams, k.of(tenant))
		s.mu.Unlock()
	}
	for _, e := range s.index.all(func(e *Entry) bool { return e.Tenant == tenant }) {
		s.index.drop(e.ID)
	}
	return nil
}

// beginRemoval keeps a tenant's queues from starting until endRemoval, and returns the queues that
// run.
func (s *Service) beginRemoval(tenant string) (run []*queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removing[tenant]++
	for key, q := range s.queues {
		if key.tenant == tenant {
			run = append(run, q)
		}
	}
	return run
}

func (s *Service) endRemoval(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing[tenant]--; s.removing[tenant] == 0 {
		delete(s.removing, tenant)
	}
}
