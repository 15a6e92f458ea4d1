package gateway

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/fre-engine/fre/httpserver"
)

// eventPath returns the event's path for the part after a function's name: at least "/", escaped
// as by the client. Bytes that a URL cannot have (RFC 3986 section 3.3) are escaped.
func eventPath(rest []byte) ([]byte, error) {
	const hex = "0123456789ABCDEF"
	out := append(make([]byte, 0, len(rest)+1), '/')
	for i, c := range rest {
		switch {
		case c == '%':
			if len(rest) < i+3 || !isHex(rest[i+1]) || !isHex(rest[i+2]) {
				return nil, fmt.Errorf("invalid escape %q in the path", rest[i:min(len(rest), i+3)])
			}
			out = append(out, c)
		case pathBytes[c]:
			out = append(out, c)
		default:
			out = append(out, '%', hex[c>>4], hex[c&15])
		}
	}
	return out, nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// pathBytes are the bytes that need no escape, and the brackets, as in net/url.
var pathBytes = func() (ok [256]bool) {
	for c := range 256 {
		ok[c] = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	}
	for _, c := range []byte("-._~!$&'()*+,;=:@/[]") {
		ok[c] = true
	}
	return ok
}()

// client is the sender of a request, as far as the gateway believes it.
type client struct {
	text    string // address, "" if none
	trusted bool   // the request came through a trusted proxy
	peer    string // address of the connection's other end
}

// clientOf follows the addresses recorded by trusted proxies, from the connection's own address
// backwards, to the first address that is not a trusted proxy.
func clientOf(x *httpserver.Exchange, proxies []netip.Prefix) client {
	at, err := netip.ParseAddrPort(x.RemoteAddr())
	if err != nil { // a Unix socket
		return client{}
	}
	addr := at.Addr().Unmap()
	c := client{peer: addr.String()}
	c.text = c.peer
	if len(proxies) == 0 || !within(addr, proxies) {
		return c
	}
	c.trusted = true
	for i := len(x.Fields) - 1; i >= 0; i-- {
		f := x.Fields[i]
		if http.CanonicalHeaderKey(string(f.Name)) != forwardedFor {
			continue
		}
		hops := strings.Split(string(f.Value), ",")
		for j := len(hops) - 1; j >= 0; j-- {
			hop, err := parseHop(hops[j])
			if err != nil { // not written by a trusted proxy
				return c
			}
			c.text = hop.String()
			if !within(hop, proxies) {
				return c
			}
		}
	}
	return c
}

// parseHop parses an address, with or without a port.
func parseHop(s string) (netip.Addr, error) {
	s = strings.TrimSpace(s)
	a, err := netip.ParseAddr(s)
	if err != nil {
		var at netip.AddrPort
		at, err = netip.ParseAddrPort(s)
		a = at.Addr()
	}
	return a.WithZone("").Unmap(), err
}

func within(a netip.Addr, ranges []netip.Prefix) bool {
	for _, p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

const (
	forwarded      = "Forwarded" // RFC 7239
	forwardedFor   = "X-Forwarded-For"
	forwardedProto = "X-Forwarded-Proto"
	forwardedHost  = "X-Forwarded-Host"
	forwardedMount = "X-Forwarded-Prefix"
)

// claimsOrigin reports whether a field claims the origin of a request, as only a proxy may: the
// gateway's own fields and related ones that web frameworks believe.
func claimsOrigin(name string) bool {
	return name == forwarded || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-")
}

// mimics reports whether name is another spelling of a field that the gateway sets, or of a field
// about the connection. WSGI, CGI and web frameworks read X_Forwarded_For as X-Forwarded-For, and
// PHP reads X.Forwarded.For so. nginx drops such names too (underscores_in_headers).
func mimics(name string) bool {
	if !strings.ContainsFunc(name, odd) {
		return false
	}
	plain := http.CanonicalHeaderKey(strings.Map(func(c rune) rune {
		if odd(c) {
			return '-'
		}
		return c
	}, name))
	switch plain {
	case "X-Request-Id", "Host", "Content-Length", "Authorization":
		return true
	}
	return hopByHop[plain] || claimsOrigin(plain) || strings.HasPrefix(plain, "X-Fre-")
}

// odd reports whether c is not part of ordinary field names.
func odd(c rune) bool {
	return c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
}

// mounted returns the path at which clients find a function, with the name as they wrote it.
func mounted(name string) string { return "/function/" + name }

// header returns the header of the event: the client's end-to-end fields, and the origin of the
// request.
func (e *exchange) header() [][2]string {
	fields := make([][2]string, 0, len(e.Fields)+7)
	var chain, elements []string
	size := len(e.Host)
	for _, f := range e.Fields {
		size += len(f.Value)
	}
	var all strings.Builder // holds all values; one allocation
	all.Grow(size)
	text := func(p []byte) string {
		n := all.Len()
		all.Write(p)
		return all.String()[n:]
	}
	host := text(e.Host)
	proto := "http"
	if e.Secure() {
		proto = "https"
	}
	own := [2]string{proto, host}
	prefix := mounted(e.named)
	for _, f := range e.Fields {
		name, value := textproto.CanonicalMIMEHeaderKey(string(f.Name)), text(f.Value)
		switch {
		case name == "X-Request-Id", mimics(name):
		case name == "Authorization" && e.secret: // a function must not learn its callers' tokens
		case !claimsOrigin(name):
			fields = append(fields, [2]string{name, value})
		case !e.client.trusted:
		case name == forwardedFor:
			chain = append(chain, value)
		case name == forwarded:
			elements = append(elements, value)
		case name == forwardedProto:
			proto = value
		case name == forwardedHost:
			host = value
		case name == forwardedMount:
			prefix = strings.TrimRight(value, "/") + mounted(e.named)
		default:
			fields = append(fields, [2]string{name, value})
		}
	}
	node := cmp.Or(e.client.peer, "unknown")
	element := forwardedElement(node, own[1], own[0])
	if len(elements) > 0 {
		element = strings.Join(append(elements, element), ", ")
	}
	said := append(make([][2]string, 0, 6), [2]string{"X-Request-Id", e.id}, [2]string{forwardedProto, proto}, [2]string{forwardedHost, host},
		[2]string{forwardedMount, prefix}, [2]string{forwarded, element})
	if e.client.peer != "" {
		way := node
		if len(chain) > 0 {
			way = strings.Join(append(chain, node), ", ")
		}
		said = append(said, [2]string{forwardedFor, way})
	}
	return eventHeader(own[1], fields, said...)
}

// forwardedElement returns the gateway's own element of Forwarded (RFC 7239 section 4).
func forwardedElement(node, host, proto string) string {
	open, end := "", ""
	if strings.Contains(node, ":") {
		open, end = `"[`, `]"`
	}
	if host == "" {
		return "for=" + open + node + end + ";proto=" + proto
	}
	return "for=" + open + node + end + `;host="` + host + `";proto=` + proto // host holds no quotation marks
}

// maxRequestID limits a request's id, in bytes.
const maxRequestID = 128

// requestID returns the client's id if it is a token (RFC 9110 section 5.6.2) of at most
// maxRequestID bytes, else a new id.
func requestID(given []byte) string {
	if id := string(given); len(id) <= maxRequestID && httpserver.ValidField(id, "") {
		return id
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], rand.Uint64())
	binary.BigEndian.PutUint64(b[8:], rand.Uint64())
	return string(hex.AppendEncode(make([]byte, 0, 2*len(b)), b[:]))
}
