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

	// sample is how many connections are looked at for one that waits: what a flood of
	// connections costs is bounded, too.
	sample = 512

	// maxRefusing is how many connections are told at once why they are refused; beyond
	// that they are closed without a word.
	maxRefusing = 64
)

// Stats is what became of a server's connections.
type Stats struct {
	Open          int    // now
	Evicted       uint64 // closed while they waited, for others
	Refused       uint64 // where none waited
	RefusedClient uint64 // of a client with too many
	NoMemory      uint64 // times that one found none
}

// Stats returns the state of the server.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Open: len(s.conns), Evicted: s.evicted, Refused: s.refused, RefusedClient: s.refusedClient, NoMemory: s.noMemory.Load()}
}

// place is what a connection holds of those there are. One without a request under way
// may lose it.
type place struct {
	since atomic.Int64 // when the last request ended, in nanoseconds since 1970; or one of those below
}

const (
	placeBusy = 0
	placeLost = -1
)

// occupy says that a request is under way; false that the place is lost.
func (p *place) occupy() bool {
	since := p.since.Load()
	return since != placeLost && (since == placeBusy || p.since.CompareAndSwap(since, placeBusy))
}

// vacate says that none is.
func (p *place) vacate(now time.Time) { p.since.CompareAndSwap(placeBusy, now.UnixNano()) }

func (p *place) lost() bool { return p.since.Load() == placeLost }

// clientOf is whom connections are counted for; the zero Addr for nobody.
func (s *Server) clientOf(nc net.Conn) netip.Addr {
	tcp, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	a := tcp.AddrPort().Addr().Unmap()
	if s.cfg.Shared != nil && s.cfg.Shared(a) {
		return netip.Addr{}
	}
	if a.Is6() { // a customer has at least that many
		return netip.PrefixFrom(a.WithZone(""), 64).Masked().Addr()
	}
	return a
}

// enterLocked gives a connection a place, another's maybe; else it says why there is
// none.
func (s *Server) enterLocked(c *conn) (refused string) {
	mine := s.clients[c.client]
	switch {
	case c.client.IsValid() && len(mine) >= s.cfg.MaxPerClient && !s.evictLocked(mine):
		s.refusedClient++
		return "too many connections of this client"
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

// evictLocked ends a connection that waits for a request, or for the rest of its head,
// longer than others.
func (s *Server) evictLocked(of map[*conn]struct{}) bool {
	for range 2 { // the one that was found may have got a request
		var oldest *conn
		var since int64
		looked := 0
		for c := range of { // from anywhere on
			if at := c.place.since.Load(); at > 0 && (oldest == nil || at < since) {
				oldest, since = c, at
			}
			if looked++; looked == sample {
				break
			}
		}
		if oldest == nil {
			return false
		}
		if oldest.place.since.CompareAndSwap(since, placeLost) {
			s.evicted++
			s.leaveLocked(oldest)
			_ = oldest.nc.SetReadDeadline(time.Unix(1, 0)) // fails on one that has ended
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

// turnAway tells a client why it is refused, if that costs no more than a moment.
func (s *Server) turnAway(c *conn, reason string) {
	if c.raw == nil || s.refusing.Add(1) > maxRefusing {
		if c.raw != nil {
			s.refusing.Add(-1)
		}
		_ = c.nc.Close() // it was not used
		return
	}
	s.wg.Go(func() {
		defer s.refusing.Add(-1)
		c.refuse(&RequestError{http.StatusServiceUnavailable, reason})
		_ = c.nc.Close() // the answer is out, or cannot go
	})
}
