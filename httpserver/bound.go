package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

const (
	defaultConnections = 10_000

	// sample limits the connections examined to find an idle one. It bounds the cost of a flood
	// of connections.
	sample = 512

	// maxRefusing limits the refusals under way at once. Further connections are closed without
	// an answer.
	maxRefusing = 64
)

// Stats counts a server's connections.
type Stats struct {
	Open          int    // now
	Evicted       uint64 // closed while idle, in favour of new connections
	Refused       uint64 // none was idle
	RefusedClient uint64 // the client had too many
	NoMemory      uint64 // failures to acquire memory
}

// Stats returns the current counts.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Open: len(s.conns), Evicted: s.evicted, Refused: s.refused, RefusedClient: s.refusedClient, NoMemory: s.noMemory.Load()}
}

// slot is a connection's share of MaxConnections. A connection without a request under way can
// lose its slot.
type slot struct {
	since atomic.Int64 // end of the last request in Unix nanoseconds, or slotBusy or slotLost
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

// clientOf returns the address that the connection counts for; the zero Addr if it counts for no
// client.
func (s *Server) clientOf(nc net.Conn) netip.Addr {
	tcp, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	a := tcp.AddrPort().Addr().Unmap()
	if s.cfg.Shared != nil && s.cfg.Shared(a) {
		return netip.Addr{}
	}
	if a.Is6() { // a customer has at least a /64
		return netip.PrefixFrom(a.WithZone(""), 64).Masked().Addr()
	}
	return a
}

// enterLocked gives c a slot, if need be that of an idle connection. Otherwise it returns the
// reason for the refusal.
func (s *Server) enterLocked(c *conn) (refused string) {
	mine := s.clients[c.client]
	switch {
	case c.client.IsValid() && len(mine) >= s.cfg.MaxPerClient && !s.evictLocked(mine):
		s.refusedClient++
		return "too many connections of the client"
	case len(s.conns) >= s.cfg.MaxConnections && !s.evictLocked(s.conns):
		s.refused++
		return "too many connections"
	}
	s.conns[c] = struct{}{}
	if c.client.IsValid() {
		if mine = s.clients[c.client]; mine == nil {
			mine = map[*conn]struct{}{}
			s.clients[c.client] = mine
		}
		mine[c] = struct{}{}
	}
	return ""
}

// evictLocked closes the connection in of that has waited longest for a request or the rest of a
// head. It examines at most sample connections.
func (s *Server) evictLocked(of map[*conn]struct{}) bool {
	for range 2 { // the candidate may get a request meanwhile
		var oldest *conn
		var since int64
		looked := 0
		for c := range of { // iteration starts at a random element
			if at := c.slot.since.Load(); at > 0 && (oldest == nil || at < since) {
				oldest, since = c, at
			}
			if looked++; looked == sample {
				break
			}
		}
		if oldest == nil {
			return false
		}
		if oldest.slot.since.CompareAndSwap(since, slotLost) {
			s.evicted++
			s.leaveLocked(oldest)
			_ = oldest.nc.SetReadDeadline(time.Unix(1, 0)) // fails only on a connection that has ended
			return true
		}
	}
	return false
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(c)
}

func (s *Server) leaveLocked(c *conn) {
	delete(s.conns, c)
	if mine := s.clients[c.client]; mine != nil {
		if delete(mine, c); len(mine) == 0 {
			delete(s.clients, c.client)
		}
	}
}

// turnAway tells the client why it is refused, if few refusals are under way and the connection
// is plain; else it closes the connection.
func (s *Server) turnAway(c *conn, reason string) {
	if c.raw == nil || s.refusing.Add(1) > maxRefusing {
		if c.raw != nil {
			s.refusing.Add(-1)
		}
		_ = c.nc.Close() // no byte was exchanged
		return
	}
	s.wg.Go(func() {
		defer s.refusing.Add(-1)
		c.refuse(&RequestError{http.StatusServiceUnavailable, reason})
		_ = c.nc.Close() // the answer was sent, or cannot be
	})
}
