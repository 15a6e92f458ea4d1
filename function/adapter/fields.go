package adapter

import (
	"net"
	"strings"

	"github.com/fre-engine/fre/function/channel"
)

// hopByHop fields belong to one connection (RFC 9110 section 7.6.1). The adapter sets the further
// fields in the list itself.
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Expect": true, "X-Fre-Id": true,
}

var hopByHopLower = func() map[string]bool {
	out := map[string]bool{}
	for name := range hopByHop {
		out[strings.ToLower(name)] = true
	}
	return out
}()

// token implements RFC 9110 section 5.6.2.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

func control(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

func odd(c rune) bool {
	return c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
}

// header is the value of an event's header; repeated values are joined.
func header(e *channel.Event, name string) string {
	var values []string
	for _, h := range e.Headers {
		if strings.EqualFold(h[0], name) && !strings.ContainsFunc(h[1], control) {
			values = append(values, h[1])
		}
	}
	return strings.Join(values, ", ")
}

// clientAddress is the last address in X-Forwarded-For: the gateway's own client.
func clientAddress(forwarded string) string {
	last := strings.TrimSpace(forwarded[strings.LastIndexByte(forwarded, ',')+1:])
	if net.ParseIP(last) == nil {
		return ""
	}
	return last
}
