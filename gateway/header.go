package gateway

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"

	"github.com/fre-engine/fre/engine"
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

// origin is where a request comes from: the connection, or the fields of trusted proxies.
type origin struct {
	proto, host, prefix string
}

// told takes a field of a trusted proxy, and reports whether the field changes o. Clients find the
// function as named.
func (o *origin) told(name, value, named string) bool {
	switch name {
	case forwardedProto:
		o.proto = value
	case forwardedHost:
		o.host = value
	case forwardedMount:
		o.prefix = strings.TrimRight(value, "/") + mounted(named)
	default:
		return false
	}
	return true
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

// hopByHop lists the fields that belong to one connection (RFC 9110 section 7.6.1), not to the
// message.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// ours lists the fields of answers that the engine sets itself.
var ours = map[string]bool{"Content-Length": true, "Date": true, "X-Request-Id": true}

// eventHeader returns the header of an event: Host, then the end-to-end fields and own, sorted by
// name. No client can drop a field of own. Names are canonical. eventHeader reuses the memory of
// fields.
func eventHeader(host string, fields [][2]string, own ...[2]string) [][2]string {
	var drop map[string]bool
	for _, f := range fields {
		if f[0] != "Connection" {
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if drop == nil {
				drop = map[string]bool{}
			}
			drop[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	fields = slices.DeleteFunc(fields, func(f [2]string) bool {
		return f[0] == "Host" || hopByHop[f[0]] || drop[f[0]] || f[0] == engine.QualifierField || f[0] == engine.VersionField
	})
	fields = append(fields, own...)
	slices.SortStableFunc(fields, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return slices.Insert(fields, 0, [2]string{"Host", host})
}
