package events

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// streams makes, writes and reads the streams of all tenants. streams is safe for concurrent use.
type streams struct {
	cfg    *Config
	nc     *nats.Conn
	js     jetstream.JetStream
	tasks  *tasks      // commits under way
	shared atomic.Bool // streams of earlier versions may exist (kind.shared)

	// making is held while a stream or a consumer is made: many publishers find at the same time
	// that a stream is missing, and the server has a race of its own when a stream is updated
	// meanwhile.
	making *sync.Mutex

	mu    sync.Mutex            // may be taken while making is held
	known map[string]*committer // by name: streams known to exist
}

func newStreams(cfg *Config, nc *nats.Conn, js jetstream.JetStream, tasks *tasks) *streams {
	t := &streams{cfg: cfg, nc: nc, js: js, tasks: tasks, making: cmp.Or(cfg.making, new(sync.Mutex)), known: map[string]*committer{}}
	t.shared.Store(true) // until scan has found none
	return t
}

// longestResult caps the time for which a template may have results kept.
const longestResult = 7 * 24 * time.Hour

// config returns the configuration that a tenant's stream must have.
func (t *streams) config(k kind, tenant string) jetstream.StreamConfig {
	var cfg jetstream.StreamConfig
	switch k {
	case kindQueue:
		cfg = jetstream.StreamConfig{
			Description: "FRE: events of tenant " + tenant + " waiting",
			Retention:   jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, MaxMsgs: t.cfg.MaxQueue, Duplicates: 2 * time.Minute,
		}
	case kindOrders:
		cfg = jetstream.StreamConfig{
			Description: "FRE: results of tenant " + tenant + " to send",
			Retention:   jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, MaxMsgs: t.cfg.MaxQueue,
		}
	case kindResults:
		cfg = jetstream.StreamConfig{
			Description: "FRE: results of tenant " + tenant + "'s events",
			Discard:     jetstream.DiscardOld, MaxMsgs: t.cfg.MaxResults, MaxMsgsPerSubject: 1, MaxAge: longestResult, AllowMsgTTL: true,
		}
	case kindDead:
		cfg = jetstream.StreamConfig{
			Description: "FRE: events of tenant " + tenant + " without further attempts",
			Discard:     jetstream.DiscardOld, MaxMsgs: t.cfg.MaxResults, MaxMsgsPerSubject: 1, MaxAge: t.cfg.KeepDead,
		}
	}
	cfg.Name, cfg.Subjects = k.of(tenant), []string{"fre." + k.word + "." + tenant + ".>"}
	cfg.Storage, cfg.Replicas, cfg.MaxBytes = jetstream.FileStorage, t.cfg.Replicas, t.cfg.QueueBytes
	cfg.AllowDirect, cfg.AllowAtomicPublish = true, true
	return cfg
}

// writer returns the writer of a tenant's stream, and makes the stream if missing.
func (t *streams) writer(ctx context.Context, k kind, tenant string) (*committer, error) {
	return t.ensure(ctx, k, tenant, t.js.CreateOrUpdateStream)
}

// ensure calls by, once for each process, so that a tenant's stream matches config.
func (t *streams) ensure(ctx context.Context, k kind, tenant string, by func(context.Context, jetstream.StreamConfig) (jetstream.Stream, error)) (*committer, error) {
	name := k.of(tenant)
	if c := t.find(name); c != nil {
		return c, nil
	}
	t.making.Lock()
	defer t.making.Unlock()
	if c := t.find(name); c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.cfg.Patience)
	defer cancel()
	if _, err := by(ctx, t.config(k, tenant)); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[name] = &committer{js: t.js, nc: t.nc, patience: t.cfg.Patience, tasks: t.tasks}
	return t.known[name], nil
}

func (t *streams) find(name string) *committer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[name]
}

// put writes to a tenant's stream; see committer.put.
func (t *streams) put(ctx context.Context, k kind, tenant string, msg *nats.Msg) (seq uint64, duplicate bool, err error) {
	for again := false; ; again = true {
		c, err := t.writer(ctx, k, tenant)
		if err != nil {
			return 0, false, fault(err)
		}
		seq, duplicate, err = c.put(msg)
		if again || !errors.Is(err, jetstream.ErrNoStreamResponse) {
			return seq, duplicate, fault(err)
		}
		t.mu.Lock()
		if t.known[k.of(tenant)] == c { // another client deleted the stream: make it anew
			delete(t.known, k.of(tenant))
		}
		t.mu.Unlock()
	}
}

// holder is a stream that may hold the result, dead letter or order of an event.
type holder struct{ stream, word string }

// holders returns the streams of a tenant, or of all tenants for "".
func (t *streams) holders(ctx context.Context, k kind, tenant string) ([]holder, error) {
	var all []holder
	if tenant != "" {
		all = append(all, holder{k.of(tenant), k.word})
	} else {
		names := t.js.StreamNames(ctx, jetstream.WithStreamListSubject("fre."+k.word+".>"))
		for name := range names.Name() {
			all = append(all, holder{name, k.word})
		}
		if err := names.Err(); err != nil {
			return nil, fault(err)
		}
	}
	if t.shared.Load() {
		all = append(all, holder{k.shared, k.sharedWord})
	}
	return all, nil
}

// lookups bounds how many streams are asked at once for an event.
const lookups = 32

// lastEnd reads the newest result or dead letter of an event. An empty tenant or function matches
// all. The error is ErrNotFound if no stream has a result or dead letter.
func (t *streams) lastEnd(ctx context.Context, k kind, tenant, function, id string) (*message, error) {
	all, err := t.holders(ctx, k, tenant)
	if err != nil {
		return nil, err
	}
	found := make(chan *message, len(all))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lookups)
	for _, h := range all {
		group.Go(func() error {
			m, err := t.lastOf(ctx, h.stream, endSubject(h.word, tenant, function, id))
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

// endOf returns the dead letter of an ended event or, without one, its result.
func (t *streams) endOf(ctx context.Context, id string) (*message, error) {
	m, err := t.lastEnd(ctx, kindDead, "", "", id)
	if errors.Is(err, ErrNotFound) {
		m, err = t.lastEnd(ctx, kindResults, "", "", id)
	}
	return m, err
}

// lastOf reads the last message of a subject.
func (t *streams) lastOf(ctx context.Context, stream, subject string) (*message, error) {
	st, err := t.js.Stream(ctx, stream)
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
func (t *streams) forget(ctx context.Context, k kind, tenant, function, id string) error {
	all, err := t.holders(ctx, k, tenant)
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := t.purge(ctx, h.stream, endSubject(h.word, tenant, function, id)); err != nil {
			return err
		}
	}
	return nil
}

// purge removes the messages of a subject from a stream; a missing stream is no error.
func (t *streams) purge(ctx context.Context, stream, subject string) error {
	st, err := t.js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err == nil {
		err = st.Purge(ctx, jetstream.WithPurgeSubject(subject))
	}
	return fault(err)
}

// endIDs returns the ids of all events with a result or a dead letter.
func (t *streams) endIDs(ctx context.Context) (map[string]bool, error) {
	ids := map[string]bool{}
	for _, k := range []kind{kindResults, kindDead} {
		all, err := t.holders(ctx, k, "")
		if err != nil {
			return nil, err
		}
		for _, h := range all {
			st, err := t.js.Stream(ctx, h.stream)
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

// discard removes this dead letter, but not a newer one of the same event.
func (t *streams) discard(ctx context.Context, letter *message) error {
	st, err := t.js.Stream(ctx, letter.stream)
	if err == nil {
		err = st.DeleteMsg(ctx, letter.seq)
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	return fault(err)
}

// ends visits the results or dead letters of a tenant's function. An empty tenant or function
// matches all.
func (t *streams) ends(ctx context.Context, k kind, tenant, function string, visit func(Entry)) error {
	all, err := t.holders(ctx, k, tenant)
	if err != nil {
		return err
	}
	for _, h := range all {
		err := each(ctx, t.js, h.stream, endSubject(h.word, tenant, function, "*"), func(msg jetstream.Msg) {
			m, err := decode(msg.Subject(), msg.Headers(), nil)
			if err != nil {
				return
			}
			if meta, err := msg.Metadata(); err == nil {
				m.Changed = meta.Timestamp.UTC()
			}
			visit(m.Entry)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// each visits the headers of a stream's messages. A missing stream has none.
func each(ctx context.Context, js jetstream.JetStream, stream, subject string, visit func(jetstream.Msg)) error {
	st, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return fault(err)
	}
	state := st.CachedInfo().State
	if state.Msgs == 0 {
		return nil
	}
	cfg := jetstream.OrderedConsumerConfig{
		HeadersOnly: true, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: state.FirstSeq, InactiveThreshold: 10 * time.Second, FilterSubjects: []string{subject},
	}
	cons, err := st.OrderedConsumer(ctx, cfg)
	if err != nil {
		return fault(err)
	}
	defer func() { // otherwise the consumer stays for a while, and their number is limited
		_ = st.DeleteConsumer(context.WithoutCancel(ctx), cons.CachedInfo().Name) // InactiveThreshold removes the consumer otherwise
	}()
	after := state.FirstSeq // the first sequence that may be unread
	for left := cons.CachedInfo().NumPending; left > 0; {
		n, err := eachOf(cons, int(min(left, 500)), &after, visit)
		if err != nil {
			return fault(err)
		}
		if n == 0 {
			// Some messages were removed meanwhile, or the server took longer than the second that
			// FetchNoWait waits.
			_, err := st.GetMsg(ctx, after, jetstream.WithGetMsgSubject(subject))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return nil
			}
			if err != nil {
				return fault(err)
			}
		}
		left -= min(left, n)
	}
	return nil
}

// eachOf visits up to most waiting messages, and returns their number. after becomes the sequence
// after the last message.
func eachOf(cons jetstream.Consumer, most int, after *uint64, visit func(jetstream.Msg)) (n uint64, err error) {
	batch, err := cons.FetchNoWait(most)
	if err != nil {
		return 0, err
	}
	for msg := range batch.Messages() {
		n++
		if meta, err := msg.Metadata(); err == nil {
			*after = meta.Sequence.Stream + 1
		}
		visit(msg)
	}
	if err := batch.Error(); !errors.Is(err, jetstream.ErrNoMessages) {
		return n, err
	}
	return n, nil
}

// consumer finds or makes a durable consumer.
func (t *streams) consumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	t.making.Lock()
	defer t.making.Unlock()
	return t.js.CreateOrUpdateConsumer(ctx, stream, cfg)
}

// removeTenant deletes a tenant's streams.
func (t *streams) removeTenant(ctx context.Context, tenant string) error {
	t.making.Lock()
	defer t.making.Unlock()
	for _, k := range kinds {
		if err := t.js.DeleteStream(ctx, k.of(tenant)); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fault(err)
		}
		if k.shared != "" {
			if err := t.purge(ctx, k.shared, "fre."+k.sharedWord+"."+tenant+".>"); err != nil {
				return err
			}
		}
		t.mu.Lock()
		delete(t.known, k.of(tenant))
		t.mu.Unlock()
	}
	return nil
}
