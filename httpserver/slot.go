package httpserver

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// slot is a connection's share of MaxConnections. A connection without a request under way can
// lose its slot.
type slot struct {
	nc     net.Conn
	client netip.Addr   // client that the connection counts for; zero for none
	since  atomic.Int64 // end of the last request in Unix nanoseconds, or slotBusy or slotLost
	idle   atomic.Bool  // waits for a request
}

const (
	slotBusy = 0
	slotLost = -1
)

// occupy marks a request as under way. It returns false if the slot is lost.
func (p *slot) occupy() bool {
	since := p.since.Load()
	return since != slotLost && (since == slotBusy || p.since.CompareAndSwap(since, slotBusy))
}

// vacate marks the connection as idle.
func (p *slot) vacate(now time.Time) { p.since.CompareAndSwap(slotBusy, now.UnixNano()) }

func (p *slot) lost() bool { return p.since.Load() == slotLost }

// closeIdle closes the connection if it waits for a request.
func (p *slot) closeIdle() {
	if p.idle.Load() {
		_ = p.nc.SetReadDeadline(time.Unix(1, 0))
	}
}
