package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fre-engine/fre/sandbox/netns"
)

const (
	maxQueries      = 512              // queries in progress, of all sandboxes
	maxQueriesOfOne = 32               // of one sandbox; a TCP connection counts as one
	maxLearned      = 256              // most learned pairs of address and port at once, for one sandbox
	queryWithin     = 5 * time.Second  // for all resolvers together
	resolverWithin  = 2 * time.Second  // for one resolver
	tcpIdle         = 10 * time.Second // for a connection without a question
	acceptAgain     = 10 * time.Millisecond
)

// resolver answers the sandboxes at the gateway's address. resolver forwards questions to the
// host's resolvers, through the host's network.
type resolver struct {
	n        *Network
	upstream upstream
	udp      *net.UDPConn
	tcp      net.Listener
	slots    chan struct{}

	ctx  context.Context // ends the queries in progress
	stop func()
	work sync.WaitGroup
}

func newResolver(n *Network) (*resolver, error) {
	r := &resolver{n: n, upstream: upstream{fixed: n.cfg.Resolvers}, slots: make(chan struct{}, maxQueries)}
	at := netip.AddrPortFrom(n.addrs.gateway, 53)
	err := netns.Do(n.router.ns.File(), func() (err error) {
		if r.udp, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at)); err != nil {
			return err
		}
		r.tcp, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		if r.udp != nil {
			_ = r.udp.Close()
		}
		return nil, fmt.Errorf("open resolver: %w", err)
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.work.Go(r.serveUDP)
	r.work.Go(r.serveTCP)
	return r, nil
}

func (r *resolver) close() {
	r.stop()
	_ = r.udp.Close()
	_ = r.tcp.Close()
	r.work.Wait()
}

// begin counts a query of the sandbox at a. The results are nil if too many queries are in
// progress or no sandbox has the address. Otherwise the caller must call end.
func (r *resolver) begin(a netip.Addr) (*Namespace, *Policy) {
	s, p := r.n.leased(a.Unmap())
	if p == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queries >= maxQueriesOfOne {
		return nil, nil
	}
	select {
	case r.slots <- struct{}{}:
	default:
		return nil, nil
	}
	s.queries++
	return s, p
}

func (r *resolver) end(s *Namespace) {
	<-r.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries--
}

func (r *resolver) serveUDP() {
	buf := make([]byte, maxUDP)
	for {
		size, from, err := r.udp.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // ICMP error for an earlier answer
		}
		s, p := r.begin(from.Addr())
		if s == nil {
			continue
		}
		msg := append([]byte(nil), buf[:size]...)
		r.work.Go(func() {
			defer r.end(s)
			if reply := r.answer(s, p, msg, false); reply != nil {
				_, _ = r.udp.WriteToUDPAddrPort(reply, from)
			}
		})
	}
}

func (r *resolver) serveTCP() {
	for {
		c, err := r.tcp.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no free file descriptor: wait until another is closed
			select {
			case <-time.After(acceptAgain):
				continue
			case <-r.ctx.Done():
				return
			}
		}
		from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
		s, p := r.begin(from.Addr())
		if s == nil {
			_ = c.Close()
			continue
		}
		r.work.Go(func() {
			defer r.end(s)
			defer c.Close()
			stop := context.AfterFunc(r.ctx, func() { _ = c.Close() })
			defer stop()
			for err := error(nil); err == nil; { // until the sandbox has no more questions
				err = r.answerTCP(s, p, c)
			}
		})
	}
}

// answerTCP answers one question on a connection (RFC 1035, 4.2.2).
func (r *resolver) answerTCP(s *Namespace, p *Policy, c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(tcpIdle)); err != nil {
		return err
	}
	msg, err := readTCP(c)
	if err != nil {
		return err
	}
	reply := r.answer(s, p, msg, true)
	if reply == nil {
		return errNotQuery
	}
	return writeTCP(c, reply)
}

func readTCP(c net.Conn) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(c, msg)
	return msg, err
}

func writeTCP(c net.Conn, msg []byte) error {
	_, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
	return err
}

// answer returns the reply to a message; nil if the message gets no reply.
func (r *resolver) answer(s *Namespace, p *Policy, msg []byte, tcp bool) []byte {
	q, err := parseQuery(msg)
	if err != nil {
		return nil
	}
	limit := q.limit
	if tcp {
		limit = math.MaxUint16
	}
	code, records := r.resolve(s, p, q)
	reply, err := q.reply(code, records, limit)
	if err != nil {
		r.n.cfg.Log.Debug("name not answered", "name", q.name, "error", err)
		return nil
	}
	return reply
}

// Types of records that contain addresses of other names (RFC 9460).
const (
	typeSVCB  dnsmessage.Type = 64
	typeHTTPS dnsmessage.Type = 65
)

// answersNothing reports whether questions of a kind get an answer without records.
func (r *resolver) answersNothing(kind dnsmessage.Type) bool {
	return kind == typeSVCB || kind == typeHTTPS || // clients also ask for A and AAAA
		kind == dnsmessage.TypeAAAA && !r.n.router.v6
}

func (r *resolver) resolve(s *Namespace, p *Policy, q query) (dnsmessage.RCode, []dnsmessage.Resource) {
	ports := p.ports(q.name)
	if len(ports) == 0 || q.question.Class != dnsmessage.ClassINET {
		return dnsmessage.RCodeRefused, nil
	}
	switch kind := q.question.Type; {
	case kind == dnsmessage.TypeALL || kind == dnsmessage.TypeAXFR:
		return dnsmessage.RCodeRefused, nil
	case r.answersNothing(kind):
		return dnsmessage.RCodeSuccess, nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, queryWithin)
	defer cancel()
	a, err := r.ask(ctx, q.question)
	if err == nil && len(p.Allow) > 0 {
		err = r.n.learn(s, p, a.addrs, ports, a.life+grace)
	}
	if err != nil {
		r.n.cfg.Log.Debug("name not resolved", "name", q.name, "error", err)
		return dnsmessage.RCodeServerFailure, nil
	}
	return a.code, a.records
}

// learn opens the way to the addresses of an allowed name, for life.
func (n *Network) learn(s *Namespace, p *Policy, addrs []netip.Addr, ports []uint16, life time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.policy.Load() != p {
		return errors.New("sandbox has ended")
	}
	now := time.Now().Unix()
	maps.DeleteFunc(s.learned, func(_ learned, until int64) bool { return until < now })
	var fresh, again []learned
	for _, a := range addrs {
		for _, port := range ports {
			l := learned{a, port}
			if _, known := s.learned[l]; known {
				again = append(again, l)
			} else {
				fresh = append(fresh, l)
			}
		}
	}
	if len(s.learned)+len(fresh) > maxLearned {
		return fmt.Errorf("the sandbox's names have more than %d addresses", maxLearned)
	}
	if len(fresh)+len(again) == 0 {
		return nil
	}
	// Update s.learned before the kernel, so that drop removes the elements even after an
	// error.
	for _, l := range fresh {
		s.learned[l] = now + int64(life/time.Second)
	}
	if err := n.router.rules.learn(s.index, fresh, again, life); err != nil {
		return err
	}
	for _, l := range again {
		s.learned[l] = now + int64(life/time.Second)
	}
	return nil
}

// ask asks the host's resolvers in turn.
func (r *resolver) ask(ctx context.Context, question dnsmessage.Question) (answer, error) {
	servers, err := r.upstream.servers()
	if err != nil {
		return answer{}, err
	}
	for _, server := range servers {
		var a answer
		a, err = r.askOne(ctx, server, question)
		if err == nil && a.code != dnsmessage.RCodeServerFailure && a.code != dnsmessage.RCodeRefused {
			return a, nil
		}
		if err == nil {
			err = fmt.Errorf("resolver %s: %s", server, a.code)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return answer{}, err
}

// askOne asks over UDP, and over TCP if the answer is too long for UDP.
func (r *resolver) askOne(ctx context.Context, server netip.AddrPort, question dnsmessage.Question) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, resolverWithin)
	defer cancel()
	id := uint16(rand.Uint32())
	msg, err := upstreamQuery(id, question)
	if err != nil {
		return answer{}, err
	}
	for _, network := range []string{"udp", "tcp"} {
		var a answer
		if a, err = r.exchange(ctx, network, server, msg, id, question); err != nil {
			return answer{}, fmt.Errorf("resolver %s: %w", server, err)
		}
		if !a.truncated {
			return a, nil
		}
	}
	return answer{}, fmt.Errorf("resolver %s: truncated answer", server)
}

func (r *resolver) exchange(ctx context.Context, network string, server netip.AddrPort, msg []byte, id uint16, question dnsmessage.Question) (answer, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, server.String())
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if network == "tcp" {
		if err := writeTCP(c, msg); err != nil {
			return answer{}, err
		}
		reply, err := readTCP(c)
		if err != nil {
			return answer{}, err
		}
		return parseAnswer(reply, id, question, r.n.reachable)
	}
	if _, err := c.Write(msg); err != nil {
		return answer{}, err
	}
	buf := make([]byte, math.MaxUint16)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return answer{}, err
		}
		// A datagram that does not match the question is forged or late; keep waiting.
		if a, err := parseAnswer(buf[:n], id, question, r.n.reachable); err == nil {
			return a, nil
		}
	}
}
