package access

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"
)

// bucket is a token bucket in one number (the generic cell rate algorithm, ITU-T I.371): the time
// at which the next event would be due at an even rate. The zero value is a full bucket.
type bucket struct{ due atomic.Int64 }

// take takes a token from a bucket that gains one every each and holds burst's worth, and returns
// 0. From an empty bucket it takes none and returns the time to wait. now counts from any fixed
// moment on a monotonic clock.
func (b *bucket) take(now, each, burst time.Duration) (wait time.Duration) {
	for {
		due := b.due.Load()
		next := max(due, int64(now)) + int64(each)
		if over := next - int64(now) - int64(max(burst, each)); over > 0 {
			return time.Duration(over)
		}
		if b.due.CompareAndSwap(due, next) {
			return 0
		}
	}
}

// left returns the time to wait for a token, without taking one.
func (b *bucket) left(now, each, burst time.Duration) time.Duration {
	return max(0, time.Duration(b.due.Load())+each-now-max(burst, each))
}

// Rate allows an event every Each, and Burst at once.
type Rate struct {
	Each  time.Duration
	Burst int
}

func (r Rate) burst() time.Duration { return r.Each * time.Duration(r.Burst) }

// Addresses limits the rate for each client address; an IPv6 /64 counts as one address. Its size is
// fixed: a bucket for each of a number of hashes, so that clients cannot make it grow. The hash is
// secret, so that a client cannot choose to share a victim's bucket. The zero value limits nothing.
type Addresses struct {
	rate    Rate
	seed    maphash.Seed
	begun   time.Time
	buckets []bucket
}

// addressBuckets take 512 KiB. With a thousand addresses at their limit, one address in 65 shares a
// bucket with one of them.
const addressBuckets = 1 << 16

// NewAddresses returns a limiter for the rate.
func NewAddresses(r Rate) Addresses {
	return Addresses{rate: r, seed: maphash.MakeSeed(), begun: time.Now(), buckets: make([]bucket, addressBuckets)}
}

// Take counts an event for an address. If the limit is reached, Take returns the time to wait. It
// allocates no memory.
func (l *Addresses) Take(a netip.Addr) (wait time.Duration) {
	if l.buckets == nil || !a.IsValid() {
		return 0
	}
	return l.of(a).take(time.Since(l.begun), l.rate.Each, l.rate.burst())
}

// Left returns the time to wait, without counting an event.
func (l *Addresses) Left(a netip.Addr) time.Duration {
	if l.buckets == nil || !a.IsValid() {
		return 0
	}
	return l.of(a).left(time.Since(l.begun), l.rate.Each, l.rate.burst())
}

func (l *Addresses) of(a netip.Addr) *bucket {
	key := Block(a).Addr().As16()
	return &l.buckets[maphash.Bytes(l.seed, key[:])%uint64(len(l.buckets))]
}

// Block returns the prefix that counts as one client: an IPv4 address, or an IPv6 /64, because one
// client can use all addresses of a /64. An invalid address gives the zero prefix.
func Block(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	p, _ := a.Prefix(min(a.BitLen(), 64)) // fails only for an invalid address
	return p
}
