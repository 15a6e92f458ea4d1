package ring

import (
	"context"
	"fmt"
)

// Producer puts records into a ring. It is for one goroutine at a time.
type Producer struct {
	end
	next     uint64 // head, as it is ours to know
	released uint64 // tail, as it was last seen
	at       uint64 // where the reserved record's length will be
	reserved int    // bytes, -1 for none
}

// NewProducer takes over the files, also when it fails. Errors: [ErrFiles],
// [ErrCorrupt].
func NewProducer(f Files) (*Producer, error) {
	e, err := open(f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	p := &Producer{end: e, reserved: -1, next: e.head.Load(), released: e.tail.Load()}
	p.mine, p.theirs = shared(e, producerSleepAt), shared(e, consumerSleepAt)
	if !within(p.next, p.released, p.released+uint64(len(p.data))) || p.released%align != 0 {
		_ = p.Close()
		return nil, ErrCorrupt
	}
	return p, nil
}

// Reserve returns n bytes of the ring to write a record to, all of it or its
// beginning, and waits for room until ctx ends: then it returns its cause. What they
// hold is left from before. They are the caller's until Commit; another Reserve drops
// them. Errors: [ErrTooLarge], [ErrGone] when there will never be room, [ErrCorrupt],
// [ErrClosed].
func (p *Producer) Reserve(ctx context.Context, n int) (record []byte, err error) {
	err = p.await(ctx, func() (err error) {
		record, err = p.TryReserve(n)
		return err
	})
	return record, err
}

// TryReserve is Reserve that returns [ErrFull] when there is no room.
func (p *Producer) TryReserve(n int) ([]byte, error) {
	p.reserved = -1
	if p.broken != nil {
		return nil, p.broken
	}
	if n < 0 || n > p.MaxRecord() {
		return nil, fmt.Errorf("%w: %d bytes of %d", ErrTooLarge, n, p.MaxRecord())
	}
	capacity := uint64(len(p.data))
	at, need := p.next, uint64(lengthLen+padded(n))
	if left := capacity - at&p.mask; left < need { // it does not fit before the end
		at += left
	}
	if at+need-p.released > capacity {
		tail := p.tail.Load() // once
		if !within(tail, p.released, p.next) {
			return nil, p.fail(ErrCorrupt)
		}
		p.released = tail
		if at+need-p.released > capacity {
			return nil, ErrFull
		}
	}
	p.at, p.reserved = at, n
	from := at&p.mask + lengthLen
	return p.data[from : from+uint64(n) : from+uint64(n)], nil
}

// Commit publishes the first n of the bytes that were reserved. It panics when
// there are fewer.
func (p *Producer) Commit(n int) {
	if n < 0 || n > p.reserved {
		panic(fmt.Sprintf("ring: %d bytes committed of %d reserved", n, p.reserved))
	}
	p.reserved = -1
	if p.at != p.next {
		p.word(p.next).Store(skip)
	}
	p.word(p.at).Store(uint64(n))
	p.next = p.at + uint64(lengthLen+padded(n))
	p.head.Store(p.next)
	p.ring()
}

// Put copies a record into the ring: Reserve and Commit.
func (p *Producer) Put(ctx context.Context, record []byte) error {
	b, err := p.Reserve(ctx, len(record))
	if err != nil {
		return err
	}
	p.Commit(copy(b, record))
	return nil
}

func padded(n int) int { return (n + align - 1) &^ (align - 1) }
