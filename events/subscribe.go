package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Subscription says which messages of other publishers to receive.
type Subscription struct {
	Subject string
	Stream  string // durable source: a message comes until handled; "": only messages published while listening
	Name    string // of the durable consumer, which is unique, or of the queue group
}

// Message is a message of another publisher.
type Message struct {
	Subject string
	Header  [][2]string
	Body    []byte
	Key     string // identifies the message when it comes again; "" if unknown
}

const (
	// handling is how many messages of a subscription are handled at once.
	handling = 64
	// pendingMessages and pendingBytes bound the messages in memory, without a stream. Excess
	// messages are lost.
	pendingMessages, pendingBytes = 8192, 32 << 20
	// handleAgain is the delay before a message that could not be handled comes again.
	handleAgain = time.Second
	// handleWait is how long handling may take: longer than Publish waits for a commit.
	handleWait = 30 * time.Second
	// forgetConsumer is how long an unused consumer is kept. An engine that is off for longer
	// misses messages.
	forgetConsumer = 30 * 24 * time.Hour
)

// Subscribe has messages handled until ctx ends or NATS reports an error. A message is finished
// once handle returns nil, or an error for which [Final] is true; until then it is handled again.
// With a stream, unfinished messages survive the process; without one they do not, and lost is
// called with the number of messages that exceeded the memory.
func (s *Service) Subscribe(ctx context.Context, sub Subscription, handle func(context.Context, *Message) error, lost func(int)) error {
	if s.nc.Status() != nats.CONNECTED {
		return refuse(ErrUnavailable, "the engine cannot reach NATS")
	}
	if sub.Stream == "" {
		return s.listen(ctx, sub, handle, lost)
	}
	return s.consume(ctx, sub, handle)
}

// Unsubscribe deletes the durable consumer of a subscription, if any.
func (s *Service) Unsubscribe(ctx context.Context, sub Subscription) error {
	if sub.Stream == "" {
		return nil
	}
	err := s.js.DeleteConsumer(ctx, sub.Stream, sub.Name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return fault(err)
}

// listen receives messages as they are published, without a stream.
func (s *Service) listen(ctx context.Context, sub Subscription, handle func(context.Context, *Message) error, lost func(int)) error {
	msgs := make(chan *nats.Msg, handling)
	in, err := s.nc.QueueSubscribeSync(sub.Subject, sub.Name)
	if err != nil {
		return fault(err)
	}
	defer func() { _ = in.Unsubscribe() }() // fails only with the connection
	if err := in.SetPendingLimits(pendingMessages, pendingBytes); err != nil {
		return fault(err)
	}
	var workers sync.WaitGroup
	for range handling {
		workers.Go(func() {
			for msg := range msgs {
				m := messageOf(msg.Subject, msg.Header, msg.Data)
				for !handled(handle(ctx, m)) && sleep(ctx, handleAgain) {
				}
			}
		})
	}
	defer workers.Wait()
	defer close(msgs)
	told := 0
	for {
		msg, err := in.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrSlowConsumer) {
			if n, dropped := in.Dropped(); dropped == nil && n > told {
				lost(n - told)
				told = n
			}
			continue
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fault(err)
		}
		select {
		case msgs <- msg:
		case <-ctx.Done():
			return nil
		}
	}
}

// consume receives messages from a stream.
func (s *Service) consume(ctx context.Context, sub Subscription, handle func(context.Context, *Message) error) error {
	if strings.HasPrefix(sub.Stream, "FRE_") || strings.HasPrefix(sub.Stream, "KV_") || strings.HasPrefix(sub.Stream, "OBJ_") {
		return fmt.Errorf("%w: stream %s is internal", ErrBadEvent, sub.Stream)
	}
	short, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	cons, err := s.js.CreateOrUpdateConsumer(short, sub.Stream, jetstream.ConsumerConfig{
		Durable: sub.Name, FilterSubject: sub.Subject, Description: "FRE: a function's trigger",
		DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckExplicitPolicy, AckWait: handleWait, MaxDeliver: -1,
		MaxAckPending: 2 * handling, InactiveThreshold: forgetConsumer,
	})
	cancel()
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("stream %s: %w", sub.Stream, ErrNotFound)
	}
	if err != nil {
		return fault(err)
	}
	all, err := cons.Messages(jetstream.PullMaxMessages(handling))
	if err != nil {
		return fault(err)
	}
	stop := context.AfterFunc(ctx, all.Stop)
	defer stop()
	defer all.Stop()
	turn := make(chan struct{}, handling)
	var under sync.WaitGroup
	defer under.Wait()
	for {
		msg, err := all.Next()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fault(err)
		}
		turn <- struct{}{}
		under.Go(func() {
			defer func() { <-turn }()
			consumeOne(ctx, msg, handle)
		})
	}
}

func consumeOne(ctx context.Context, msg jetstream.Msg, handle func(context.Context, *Message) error) {
	m := messageOf(msg.Subject(), msg.Headers(), msg.Data())
	meta, err := msg.Metadata()
	if err == nil && m.Key == "" {
		m.Key = meta.Stream + "\x00" + strconv.FormatUint(meta.Sequence.Stream, 10) + "\x00" + strconv.FormatInt(meta.Timestamp.UnixNano(), 10)
	}
	var refused *RefusedError
	switch err := handle(ctx, m); {
	case err == nil:
		_ = msg.Ack() // a message whose acknowledgement is lost comes again, with the same key
	case handled(err):
		_ = msg.TermWithReason(oneLine(err.Error())) // as above
	case errors.As(err, &refused) && refused.After > 0:
		_ = msg.NakWithDelay(refused.After) // as above
	default:
		_ = msg.NakWithDelay(handleAgain) // as above
	}
}

// handled reports whether a message was handled, or never will be.
func handled(err error) bool {
	return err == nil || Final(err)
}

// messageOf copies the fields that an event's header may have. Fields that only the engine may set
// are left out.
func messageOf(subject string, h nats.Header, body []byte) *Message {
	m := &Message{Subject: subject, Body: body}
	for name, values := range h {
		if !validField(name) {
			continue
		}
		for _, v := range values {
			m.Header = append(m.Header, [2]string{name, oneLine(v)})
		}
	}
	if id := h.Get(nats.MsgIdHdr); id != "" {
		m.Key = id
	}
	return m
}

// validField reports whether name is a field name of HTTP (RFC 9110 section 5.1), and not reserved
// for the engine.
func validField(name string) bool {
	lower := strings.ToLower(name)
	reserved := strings.HasPrefix(lower, "x-fre-") || strings.HasPrefix(lower, "fre-") || slices.Contains([]string{"x-call-id", "content-length", "transfer-encoding"}, lower)
	return name != "" && !reserved && !strings.ContainsFunc(name, func(r rune) bool {
		letter := 'a' <= r|0x20 && r|0x20 <= 'z'
		return !letter && !strings.ContainsRune("0123456789!#$%&'*+-.^_`|~", r)
	})
}
