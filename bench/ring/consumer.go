package ring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"github.com/fre-engine/fre/internal/linux"
)

// forwarded is the most records in one writev.
const forwarded = 64

// Consumer takes records out of a ring. A Consumer is for one goroutine at a time.
type Consumer struct {
	end
	next      uint64   // private copy of tail
	committed uint64   // head, as last read
	records   [][]byte // result of the last TryPeek
	ends      []uint64 // index behind each of records
	vector    net.Buffers
}

// NewConsumer takes ownership of the files, also on failure. Errors: [ErrFiles], [ErrCorrupt].
func NewConsumer(f Files) (*Consumer, error) {
	e, err := open(f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	c := &Consumer{end: e, next: e.tail.Load()}
	c.committed = c.next
	c.mine, c.theirs = shared(e, consumerSleepAt), shared(e, producerSleepAt)
	if !within(c.head.Load(), c.next, c.next+uint64(len(c.data))) || c.next%align != 0 {
		_ = c.Close()
		return nil, ErrCorrupt
	}
	return c, nil
}

func shared(e end, offset int) *atomic.Uint64 { return linux.SharedUint64(e.mem, offset) }

// Peek returns the oldest record. Peek waits for a record until ctx ends and then returns the
// cause of ctx. The bytes are memory of the ring, valid until Release; a hostile producer can
// change them (see the package comment). After the producer has left and the caller has released
// the last record, Peek returns [io.EOF]. Errors: [ErrCorrupt], [ErrClosed].
func (c *Consumer) Peek(ctx context.Context) ([]byte, error) {
	records, err := c.PeekMany(ctx, 1)
	if err != nil {
		return nil, err
	}
	return records[0], nil
}

// PeekMany is Peek for all available records, at least 1 and at most limit. The next call reuses
// the slice.
func (c *Consumer) PeekMany(ctx context.Context, limit int) (records [][]byte, err error) {
	err = c.await(ctx, func() (err error) {
		records, err = c.TryPeek(limit)
		return err
	})
	if errors.Is(err, ErrGone) {
		err = io.EOF
	}
	return records, err
}

// TryPeek is PeekMany without a wait: in an empty ring it returns [ErrEmpty].
func (c *Consumer) TryPeek(limit int) ([][]byte, error) {
	c.records, c.ends = c.records[:0], c.ends[:0]
	if c.broken != nil {
		return nil, c.broken
	}
	capacity := uint64(len(c.data))
	if c.committed == c.next || limit > 1 {
		head := c.head.Load() // once
		if head-c.next > capacity || !within(head, c.committed, c.next+capacity) {
			return nil, c.fail(ErrCorrupt)
		}
		c.committed = head
	}
	if c.committed == c.next {
		return nil, ErrEmpty
	}
	// The loop ends: each pass consumes at least lengthLen of the committed bytes.
	for at := c.next; at != c.committed && len(c.records) < max(1, limit); {
		length := c.word(at).Load() // once
		if length == skip {
			at += capacity - at&c.mask
			if c.committed-at-lengthLen >= capacity { // no record committed after the skip
				return nil, c.fail(ErrCorrupt)
			}
			length = c.word(at).Load()
		}
		from := at&c.mask + lengthLen
		if length > uint64(c.MaxRecord()) || length > capacity-from || uint64(lengthLen+padded(int(length))) > c.committed-at {
			return nil, c.fail(ErrCorrupt)
		}
		c.records = append(c.records, c.data[from:from+length:from+length])
		at += uint64(lengthLen + padded(int(length)))
		c.ends = append(c.ends, at)
	}
	return c.records, nil
}

// Release returns the n oldest peeked records to the producer. Release panics if fewer records
// were peeked. The caller must peek at the rest again.
func (c *Consumer) Release(n int) {
	if n < 0 || n > len(c.ends) {
		panic(fmt.Sprintf("ring: %d records released of %d looked at", n, len(c.ends)))
	}
	if n == 0 {
		return
	}
	c.next = c.ends[n-1]
	c.records, c.ends = c.records[:0], c.ends[:0]
	c.tail.Store(c.next)
	c.ring()
}

// Forward waits for records, writes all available ones (at most 64) to w, and releases them. A TCP
// or Unix connection gets them in one writev; the kernel makes the only copy. w must not keep the
// bytes. ctx limits the wait for records only; limit the write with a deadline of w
// (SetWriteDeadline). Forward returns the number of bytes written. After a failed write no record
// is released, although w may have got some of the bytes. Errors: as for Peek, and errors of w.
func (c *Consumer) Forward(ctx context.Context, w io.Writer) (int64, error) {
	records, err := c.PeekMany(ctx, forwarded)
	if err != nil {
		return 0, err
	}
	c.vector = append(c.vector[:0], records...)
	rest := c.vector // WriteTo consumes it
	n, err := rest.WriteTo(w)
	if err != nil {
		return n, fmt.Errorf("write %d records of a ring: %w", len(records), err)
	}
	c.Release(len(records))
	return n, nil
}
