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

// forwarded is how many records go out by one writev.
const forwarded = 64

// Consumer takes records out of a ring. It is for one goroutine at a time.
type Consumer struct {
	end
	next      uint64   // tail, as it is ours to know
	committed uint64   // head, as it was last seen
	records   [][]byte // those looked at
	ends      []uint64 // where each of them ends
	vector    net.Buffers
}

// NewConsumer takes over the files, also when it fails. Errors: [ErrFiles],
// [ErrCorrupt].
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

// Peek returns the oldest record, and waits for one until ctx ends: then it returns
// its cause. The bytes are the ring's memory, until Release; see the package on
// producers that are not trusted. After the last record of a producer that is gone it
// returns [io.EOF]. Errors: [ErrCorrupt], [ErrClosed].
func (c *Consumer) Peek(ctx context.Context) ([]byte, error) {
	records, err := c.PeekMany(ctx, 1)
	if err != nil {
		return nil, err
	}
	return records[0], nil
}

// PeekMany is Peek of as many records as there are, at least one, at most limit. The
// slice is reused by the next call.
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

// TryPeek is PeekMany that returns [ErrEmpty] when there is none.
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
	// Every turn but one takes at least a length's bytes of what was committed.
	for at := c.next; at != c.committed && len(c.records) < max(1, limit); {
		length := c.word(at).Load() // once
		if length == skip {
			at += capacity - at&c.mask
			if c.committed-at-lengthLen >= capacity { // nothing behind it
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

// Release gives the n oldest of the records that were looked at back to the
// producer. It panics when there are fewer. The others are to be looked at anew.
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

// Forward waits for records and writes the bytes of all that are there to w, as one
// writev where w is a TCP or Unix connection, then releases them. The bytes are
// copied once, by the kernel; w must not keep them. How long it may take is w's to
// know (SetWriteDeadline): ctx is for the records. It returns the bytes written. A
// write that fails releases nothing, so that some may have been written in part.
// Errors: those of Peek and of w.
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
