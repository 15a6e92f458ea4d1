package ring

import (
	"context"
	"fmt"
)

// Producer puts records into a ring. A Producer is for one goroutine at a time.
type Producer struct {
	end
	next     uint64 // private copy of head
	released uint64 // tail, as last read
	at       uint64 // index of the reserved record's length
	reserved int    // bytes, -1 for none
}

// NewProducer takes ownership of the files, also on failure. Errors: [ErrFiles], [ErrCorrupt].
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

// Reserve returns n bytes of the ring for a record of at most n bytes. The bytes hold old data and
// belong to the caller until Commit or the next Reserve. Reserve waits for room until ctx ends and
// then returns the cause of ctx. Errors: [ErrTooLarge], [ErrGone] if the ring is full and the
// consumer has left, [ErrCorrupt], [ErrClosed].
func (p *Producer) Reserve(ctx context.Context, n int) (record []byte, err error) {
	err = p.await(ctx, func() (err error) {
		record, err = p.TryReserve(n)
		return err
	})
	return record, err
}

// TryReserve is Reserve without a wait: in a full ring it returns [ErrFull].
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
	if left := capacity - at&p.mask; left < need { // too little room before the end of the data
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

// Commit publishes the first n reserved bytes as a record. Commit panics if fewer are reserved.
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
