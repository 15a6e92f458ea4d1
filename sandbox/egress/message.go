package egress

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxUDP is the size of a DNS message over UDP without the risk of fragments (DNS flag day
	// 2020).
	maxUDP = 1232
	// maxLife is the longest lifetime of an answer, whatever the TTL of its records.
	maxLife = time.Hour
	// grace is how much longer than the answer its addresses stay reachable: a program may look
	// up a name just before the answer expires, and connect afterwards.
	grace = time.Minute
)

// query is a sandbox's question.
type query struct {
	id       uint16
	question dnsmessage.Question
	name     string // lower case, without the final dot
	edns     bool
	limit    int // most bytes of a reply over UDP
}

var errNotQuery = errors.New("not a single question")

// parseQuery parses a message with exactly one question.
func parseQuery(msg []byte) (query, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return query{}, err
	}
	questions, err := p.AllQuestions()
	if err != nil {
		return query{}, err
	}
	if h.Response || h.OpCode != 0 || len(questions) != 1 {
		return query{}, errNotQuery
	}
	q := query{id: h.ID, question: questions[0], limit: 512}
	q.name = strings.ToLower(strings.TrimSuffix(q.question.Name.String(), "."))
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return query{}, errNotQuery
	}
	err = q.readOptions(&p)
	return q, err
}

// readOptions reads the section that may hold the OPT record of EDNS (RFC 6891).
func (q *query) readOptions(p *dnsmessage.Parser) error {
	for {
		h, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns, q.limit = true, min(max(int(h.Class), 512), maxUDP)
		}
		if err := p.SkipAdditional(); err != nil {
			return err
		}
	}
}

// upstreamQuery returns the message with the question for the host's resolvers.
func upstreamQuery(id uint16, question dnsmessage.Question) ([]byte, error) {
	m := dnsmessage.Message{
		Header:      dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions:   []dnsmessage.Question{question},
		Additionals: []dnsmessage.Resource{opt()},
	}
	return m.Pack()
}

func opt() dnsmessage.Resource {
	r := dnsmessage.Resource{Body: &dnsmessage.OPTResource{}}
	_ = r.Header.SetEDNS0(maxUDP, dnsmessage.RCodeSuccess, false) // only an invalid name could fail
	return r
}

// answer is the answer of an upstream resolver.
type answer struct {
	code      dnsmessage.RCode
	truncated bool
	records   []dnsmessage.Resource
	addrs     []netip.Addr // the addresses in records
	life      time.Duration
}

var errWrongAnswer = errors.New("answer to another question")

// parseAnswer parses the answer to a question. The result has the requested records and the
// aliases on the way. The result omits addresses for which reachable is false: no name may lead
// a sandbox to an address that the sandbox may not reach directly.
func parseAnswer(msg []byte, id uint16, question dnsmessage.Question, reachable func(netip.Addr) bool) (answer, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return answer{}, err
	}
	asked, err := p.AllQuestions()
	if err != nil {
		return answer{}, err
	}
	if !h.Response || h.ID != id || len(asked) != 1 || !isSame(asked[0], question) {
		return answer{}, errWrongAnswer
	}
	a := answer{code: h.RCode, truncated: h.Truncated, life: maxLife}
	for {
		r, err := p.Answer()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return a, nil
		}
		if err != nil {
			return answer{}, err
		}
		if !isRequested(r.Header, question) {
			continue
		}
		if addr := addressIn(r); addr.IsValid() {
			if !reachable(addr) {
				continue
			}
			a.addrs = append(a.addrs, addr)
		}
		r.Header.TTL = min(r.Header.TTL, uint32(maxLife/time.Second))
		a.life = min(a.life, time.Duration(r.Header.TTL)*time.Second)
		a.records = append(a.records, r)
	}
}

func isSame(a, b dnsmessage.Question) bool {
	return a.Type == b.Type && a.Class == b.Class && strings.EqualFold(a.Name.String(), b.Name.String())
}

// isRequested reports whether a record answers the question, or is an alias on the way.
func isRequested(h dnsmessage.ResourceHeader, question dnsmessage.Question) bool {
	return h.Class == question.Class && (h.Type == question.Type || h.Type == dnsmessage.TypeCNAME)
}

// addressIn returns the address of an A or AAAA record, else an invalid address.
func addressIn(r dnsmessage.Resource) netip.Addr {
	switch body := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(body.A)
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(body.AAAA)
	}
	return netip.Addr{}
}

// reply packs the reply for the sandbox, in at most limit bytes.
func (q query) reply(code dnsmessage.RCode, records []dnsmessage.Resource, limit int) ([]byte, error) {
	m := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: q.id, Response: true, RCode: code, RecursionDesired: true, RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{q.question},
		Answers:   records,
	}
	if q.edns {
		m.Additionals = []dnsmessage.Resource{opt()}
	}
	b, err := m.Pack()
	if err == nil && len(b) > limit {
		m.Answers, m.Truncated = nil, true // the sandbox asks again over TCP
		b, err = m.Pack()
	}
	return b, err
}
