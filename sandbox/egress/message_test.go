package egress

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fre-engine/fre/internal/outward"
)

func question(name string, kind dnsmessage.Type) dnsmessage.Question {
	return dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}
}

func pack(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseQuery(t *testing.T) {
	q := question("Example.ORG.", dnsmessage.TypeA)
	for _, c := range []struct {
		name string
		msg  dnsmessage.Message
		ok   bool
	}{
		{"question", dnsmessage.Message{Questions: []dnsmessage.Question{q}}, true},
		{"question with EDNS", dnsmessage.Message{Questions: []dnsmessage.Question{q}, Additionals: []dnsmessage.Resource{opt()}}, true},
		{"no question", dnsmessage.Message{}, false},
		{"two questions", dnsmessage.Message{Questions: []dnsmessage.Question{q, q}}, false},
		{"answer", dnsmessage.Message{Header: dnsmessage.Header{Response: true}, Questions: []dnsmessage.Question{q}}, false},
		{"update", dnsmessage.Message{Header: dnsmessage.Header{OpCode: 5}, Questions: []dnsmessage.Question{q}}, false},
	} {
		got, err := parseQuery(pack(t, c.msg))
		if (err == nil) != c.ok || c.ok && (got.name != "example.org" || got.edns != (len(c.msg.Additionals) > 0)) {
			t.Errorf("%s: %+v, %v; want accepted %v", c.name, got, err, c.ok)
		}
	}
}

// TestParseAnswer: The resolver keeps the permitted addresses of an answer and drops the blocked
// ones.
func TestParseAnswer(t *testing.T) {
	asked := question("a.test.", dnsmessage.TypeA)
	header := dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET, TTL: 7200}
	a := func(s string) dnsmessage.Resource {
		return dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: netip.MustParseAddr(s).As4()}}
	}
	alias := dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("b.test.")}}
	text := dnsmessage.Resource{Header: header, Body: &dnsmessage.TXTResource{TXT: []string{"x"}}}
	full := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, Response: true},
		Questions: []dnsmessage.Question{asked},
		Answers:   []dnsmessage.Resource{alias, a("198.51.100.1"), a("127.0.0.1"), text, a("10.0.0.1"), a("169.254.169.254"), a("198.51.100.2")},
	}
	n := &Network{cfg: Config{AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}}
	got, err := parseAnswer(pack(t, full), 7, asked, n.reachable)
	var addrs []string
	for _, a := range got.addrs {
		addrs = append(addrs, a.String())
	}
	if want := []string{"198.51.100.1", "10.0.0.1", "198.51.100.2"}; err != nil || !slices.Equal(addrs, want) || len(got.records) != 4 {
		t.Errorf("addresses %v of %d records, %v; want %v of 4", addrs, len(got.records), err, want)
	}
	if got.life != maxLife || got.records[0].Header.TTL != 3600 {
		t.Errorf("believed for %v, record says %d s; want both an hour", got.life, got.records[0].Header.TTL)
	}
	for name, change := range map[string]func(m *dnsmessage.Message){
		"another id":       func(m *dnsmessage.Message) { m.ID++ },
		"a query":          func(m *dnsmessage.Message) { m.Response = false },
		"another question": func(m *dnsmessage.Message) { m.Questions = []dnsmessage.Question{question("c.test.", asked.Type)} },
		"another type":     func(m *dnsmessage.Message) { m.Questions = []dnsmessage.Question{question("a.test.", 28)} },
	} {
		m := full
		change(&m)
		if got, err := parseAnswer(pack(t, m), 7, asked, n.reachable); err == nil {
			t.Errorf("%s: accepted as %+v", name, got)
		}
	}
}

// TestReplyFits: A reply beyond the limit is truncated and marked.
func TestReplyFits(t *testing.T) {
	q := query{id: 1, question: question("a.test.", dnsmessage.TypeTXT)}
	var records []dnsmessage.Resource
	for range 20 {
		records = append(records, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET},
			Body:   &dnsmessage.TXTResource{TXT: []string{strings.Repeat("x", 100)}},
		})
	}
	for _, c := range []struct {
		limit     int
		truncated bool
	}{{512, true}, {65535, false}} {
		b, err := q.reply(dnsmessage.RCodeSuccess, records, c.limit)
		var m dnsmessage.Message
		if err != nil || m.Unpack(b) != nil || m.Truncated != c.truncated || len(b) > c.limit {
			t.Errorf("in %d bytes: %d bytes, truncated %v, %v; want truncated %v", c.limit, len(b), m.Truncated, err, c.truncated)
		}
	}
}

// FuzzMessages: Any DNS message is parsed or refused without a panic.
func FuzzMessages(f *testing.F) {
	asked := question("a.test.", dnsmessage.TypeA)
	m := dnsmessage.Message{Questions: []dnsmessage.Question{asked}, Additionals: []dnsmessage.Resource{opt()}}
	f.Add(pack(f, m))
	m.Response = true
	m.Answers = []dnsmessage.Resource{
		{Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{10}}},
		{Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.CNAMEResource{CNAME: asked.Name}},
	}
	f.Add(pack(f, m))
	n := &Network{}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if q, err := parseQuery(msg); err == nil {
			if b, err := q.reply(dnsmessage.RCodeRefused, nil, q.limit); err == nil && len(b) > q.limit {
				t.Errorf("%x: reply of %d bytes, limit %d", msg, len(b), q.limit)
			}
		}
		if a, err := parseAnswer(msg, 0, asked, n.reachable); err == nil {
			for _, addr := range a.addrs {
				if outward.Within(blocked, addr) {
					t.Errorf("%x: blocked address %s passes", msg, addr)
				}
			}
			if a.life < 0 || a.life > maxLife {
				t.Errorf("%x: believed for %v", msg, a.life)
			}
		}
	})
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("# c\nnameserver 10.0.0.2\nnameserver fe80::1%eth0 x\nsearch a\nnameserver nobody\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list := parseResolvConf(b)
		if len(list) > 3 {
			t.Errorf("%q: %d resolvers, want 3 at most", b, len(list))
		}
		for _, a := range list {
			if !a.IsValid() || a.Port() != 53 {
				t.Errorf("%q: resolver %v", b, a)
			}
		}
	})
}

// TestBlocked: Egress never reaches private ranges, metadata services and other special addresses,
// unless the configuration allows a range.
func TestBlocked(t *testing.T) {
	n := &Network{cfg: Config{AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")}}}
	for s, want := range map[string]bool{
		"198.51.100.1": true, "8.8.8.8": true, "2001:4860::1": true, "10.1.2.3": true, "fd00:1::1": true, "64:ff9b::8.8.8.8": true, "172.32.0.1": true,
		"0.0.0.1": false, "10.2.0.1": false, "100.64.0.1": false, "127.0.0.1": false, "169.254.169.254": false, "168.63.129.16": false,
		"172.31.255.255": false, "192.168.1.1": false, "192.0.0.192": false, "198.19.0.1": false, "224.0.0.1": false, "255.255.255.255": false,
		"::1": false, "::": false, "::ffff:8.8.8.8": false, "64:ff9b::10.0.0.1": false, "64:ff9b::169.254.169.254": false, "2002:a00:1::": false,
		"fd00:ec2::254": false, "fe80::1": false, "ff02::1": false,
	} {
		if got := n.reachable(netip.MustParseAddr(s)); got != want {
			t.Errorf("%s: reachable %v, want %v", s, got, want)
		}
	}
}

// TestAddresses: Each sandbox gets its own address within the subnet.
func TestAddresses(t *testing.T) {
	for _, subnet := range []string{"169.254.192.0/18", "10.9.8.0/24", "10.0.0.0/8"} {
		p := netip.MustParsePrefix(subnet)
		a, err := newAddresses("fre-x", p)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Addr]string{a.gateway: "gateway"}
		take := func(what string, addr netip.Addr) {
			t.Helper()
			if was := seen[addr]; was != "" || !p.Contains(addr) {
				t.Fatalf("%s: %s has %s, which is the %s's or out of range", subnet, what, addr, was)
			}
			seen[addr] = what
		}
		for range min(a.count(), 1<<14) {
			take("sandbox", a.next())
		}
		pairs := uint32(0)
		for ; pairs < 1<<12; pairs++ {
			host, router, ok := a.pair(pairs)
			if !ok {
				break
			}
			take("host", host)
			take("router", router)
		}
		if pairs < 32 {
			t.Errorf("%s: only %d pairs", subnet, pairs)
		}
	}
}
