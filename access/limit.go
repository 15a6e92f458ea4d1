package access

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"
)

// bucket is a token bucket as one number (the generic cell rate algorithm, ITU-T I.371):
// when the next would be due if all had come evenly. The zero value is a full one.
type bucket struct{ due atomic.Int64 }

// take takes one where they come back each so often and a burst lasts for so long; how
// long to wait where there is none. now counts from any fixed moment, on a clock that
// nobody sets.
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

// left says how long to wait without taking anything.
func (b *bucket) left(now, each, burst time.Duration) time.Duration {
	return max(0, time.Duration(b.due.Load())+each-now-max(burst, each))
}

// Rate is one for each so often, and so many at once.
type Rate struct {
	Each  time.Duration
	Burst int
}

func (r Rate) burst() time.Duration { return r.Each * time.Duration(r.Burst) }

// Addresses limits what comes from one address, of IPv6 one /64. It has one bucket for
// each of a fixed number of hashes, so that nobody makes it large; the hash is secret, so
// that nobody chooses with whom to share. The zero value limits nothing.
type Addresses struct {
	rate    Rate
	seed    maphash.Seed
	begun   time.Time
	buckets []bucket
}

// addressBuckets takes 512 KiB. With a thousand addresses at their limit, one address in
// 65 shares its bucket with one of them.
const addressBuckets = 1 << 16

// NewAddresses limits to a rate.
func NewAddresses(r Rate) Addresses {
	return Addresses{rate: r, seed: maphash.MakeSeed(), begun: time.Now(), buckets: make([]bucket, addressBuckets)}
}

// Take counts one for an address and says how long to wait where it has had as many as
// it may. It allocates nothing.
func (l *Addresses) Take(a netip.Addr) (wait time.Duration) {
	if l.buckets == nil || !a.IsValid() {
		return 0
	}
	return l.of(a).take(time.Since(l.begun), l.rate.Each, l.rate.burst())
}

// Left says how long to wait without counting.
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

// Block is what counts as one client's: an address of IPv4, of IPv6 a /64, in which one
// client has as many addresses as it likes. It is the zero prefix for no address.
func Block(a netip.Addr) netip.Prefix {
	a = a.Unmap()
	p, _ := a.Prefix(min(a.BitLen(), 64)) // fails for no address alone
	return p
}
