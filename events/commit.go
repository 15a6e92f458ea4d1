package events

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStream acknowledges a write once the write is on disk. An fsync for each message would be
// slow, so the messages that arrive during a commit form the next commit. A few messages go one by
// one, many as one batch (JetStream's atomic publish). A batch costs about four syncs, a directory
// with its files, and two milliseconds of CPU; a single message costs 55 µs.
const (
	batchFrom = 32
	batchMost = 512
	batchSize = 4 << 20 // of bodies
)

// committer writes to one stream.
type committer struct {
	js       jetstream.JetStream
	nc       *nats.Conn
	patience time.Duration
	tasks    *tasks

	mu      sync.Mutex
	waiting []*writing
	running bool
}

// writing is one message on its way to disk.
type writing struct {
	msg       *nats.Msg
	seq       uint64
	duplicate bool
	err       error
	done      chan struct{}
}

// put blocks until the message is on disk or has failed, and returns the message's sequence in the
// stream. put takes no context: the caller always learns the outcome.
func (c *committer) put(msg *nats.Msg) (seq uint64, duplicate bool, err error) {
	w := &writing{msg: msg, done: make(chan struct{})}
	c.mu.Lock()
	c.waiting = append(c.waiting, w)
	if !c.running {
		c.running = true
		c.tasks.fork(c.run)
	}
	c.mu.Unlock()
	<-w.done
	return w.seq, w.duplicate, w.err
}

func (c *committer) run() {
	for {
		c.mu.Lock()
		n, size := 0, 0
		for n < len(c.waiting) && n < batchMost && size < batchSize {
			size += len(c.waiting[n].msg.Data)
			n++
		}
		all := c.waiting[:n:n]
		c.waiting = c.waiting[n:]
		if n == 0 {
			c.waiting = nil
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if len(all) < batchFrom || c.batch(all) != nil {
			c.single(all) // the server recognises messages that the batch did write by their ids
		}
		for _, w := range all {
			close(w.done)
		}
	}
}

// single writes messages one by one. It sends all of them before it waits for an answer.
func (c *committer) single(all []*writing) {
	futures := make([]jetstream.PubAckFuture, len(all))
	for i, w := range all {
		futures[i], w.err = c.js.PublishMsgAsync(w.msg)
	}
	for i, w := range all {
		if w.err != nil {
			continue
		}
		select {
		case ack := <-futures[i].Ok():
			w.seq, w.duplicate = ack.Sequence, ack.Duplicate
		case w.err = <-futures[i].Err():
		}
	}
}

// batch writes all messages or none.
func (c *committer) batch(all []*writing) error {
	id := rand.Text()
	last := len(all) - 1
	defer func() {
		for _, w := range all {
			for _, name := range []string{"Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"} {
				delete(w.msg.Header, name)
			}
		}
	}()
	for i, w := range all {
		w.msg.Header["Nats-Batch-Id"] = []string{id}
		w.msg.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(i + 1)}
		if i == last {
			w.msg.Header["Nats-Batch-Commit"] = []string{"1"}
			break
		}
		if err := c.nc.PublishMsg(w.msg); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	answer, err := c.nc.RequestMsgWithContext(ctx, all[last].msg)
	if err != nil {
		return err
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Seq   uint64              `json:"seq"`
		Count int                 `json:"count"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return fmt.Errorf("answer to a batch: %w", err)
	}
	switch {
	case ack.Error != nil:
		return ack.Error
	case ack.Count != len(all):
		return fmt.Errorf("answer to a batch of %d: %d are written", len(all), ack.Count)
	}
	for i, w := range all {
		w.seq = ack.Seq - uint64(last-i)
	}
	return nil
}
