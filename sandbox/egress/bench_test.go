package egress

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox/netns"
)

// BenchmarkLease compares, in turn, the part of a start that waits for a namespace: from the pool
// with and without egress, and made on demand.
func BenchmarkLease(b *testing.B) {
	if !fretest.OwnNetwork(b) {
		return
	}
	n := open(b, func(c *Config) { c.Size = 4; c.Log = nil })
	loopback := netns.Open(netns.Config{Size: 4})
	b.Cleanup(loopback.Close)
	list := Policy{Allow: []Destination{{Name: "public.test"}, {Prefix: netip.PrefixFrom(fretest.Upstream, 32)}}}
	fail := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	paths := []struct {
		name  string
		run   func() (undo func())
		times []time.Duration
	}{
		{name: "loopback", run: func() func() {
			s, err := loopback.Acquire()
			fail(err)
			return func() { loopback.Release(s) }
		}},
		{name: "egress", run: func() func() {
			s, err := n.Acquire(Policy{})
			fail(err)
			return func() { n.Release(s) }
		}},
		{name: "egress-list", run: func() func() {
			s, err := n.Acquire(list)
			fail(err)
			return func() { n.Release(s) }
		}},
		{name: "loopback-made", run: func() func() {
			s, err := netns.New(nil)
			fail(err)
			return func() { fail(s.Close()) }
		}},
		{name: "egress-made", run: func() func() {
			s, err := n.make()
			fail(err)
			return func() { fail(n.drop(s)) }
		}},
	}
	for b.Loop() {
		for i := range paths {
			// The pool cleans while no start runs, so that a lease finds it full.
			for ready, _ := n.pool.Len(); ready < 4; ready, _ = n.pool.Len() {
				time.Sleep(time.Millisecond) //nolint:forbidigo // see above
			}
			began := time.Now()
			undo := paths[i].run()
			paths[i].times = append(paths[i].times, time.Since(began))
			undo()
		}
	}
	for _, p := range paths {
		slices.Sort(p.times)
		for name, at := range map[string]int{"p50": len(p.times) / 2, "p99": len(p.times) * 99 / 100} {
			b.ReportMetric(float64(p.times[at].Nanoseconds())/1e3, p.name+"-"+name+"-µs")
		}
	}
}
