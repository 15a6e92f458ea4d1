package events

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/outward"
)

const (
	// callbackTries are made, with pauses that double from callbackPause: two minutes of pauses.
	callbackTries = 8
	callbackPause = time.Second
	// callbackTimeout is for each try.
	callbackTimeout = 30 * time.Second
	callbackAckWait = 2 * callbackTimeout
	// callbacksAtOnce bounds all callbacks being sent, callbacksOfTenant the callbacks of one
	// tenant, callbacksOfReceiver the callbacks of one tenant to one host. A receiver that hangs
	// occupies its slots for callbackTimeout each time.
	callbacksAtOnce     = 64
	callbacksOfTenant   = 16
	callbacksOfReceiver = 8
	// callbacksHeld bounds a tenant's callbacks in memory; most of them wait for their receiver.
	callbacksHeld = 64
)

// Callbacks says where results may be sent. The zero value forbids callbacks.
type Callbacks struct {
	Hosts    []string       // NAME or *.NAME, as far as the name leads to public addresses
	Networks []netip.Prefix // allowed addresses, private ones too
	Secret   []byte         // signs callbacks, at least 16 bytes; required with Hosts or Networks

	timeout time.Duration // of one try; 0 means callbackTimeout
}

func (c *Callbacks) check() error {
	if (len(c.Hosts) > 0 || len(c.Networks) > 0) && len(c.Secret) < 16 {
		return errors.New("callbacks: configure a secret of at least 16 bytes, for signatures")
	}
	return nil
}

// parseCallback parses a callback URL, and makes it fit for a request line: it drops the fragment
// and percent-encodes characters that RFC 3986 forbids in a query, as browsers do.
func parseCallback(raw string) (*url.URL, error) {
	if i := strings.IndexFunc(raw, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		return nil, refuse(ErrBadEvent, "callback URL %q: character %d is a control character", raw, i+1)
	}
	u, err := url.Parse(raw)
	port, perr := uint64(0), error(nil)
	if err == nil && u.Port() != "" {
		port, perr = strconv.ParseUint(u.Port(), 10, 16)
	}
	switch {
	case len(raw) > maxCallback:
		return nil, refuse(ErrBadEvent, "callback URL: %d bytes, the limit is %d", len(raw), maxCallback)
	case err != nil || u.Host == "" || u.Hostname() == "":
		return nil, refuse(ErrBadEvent, "callback URL %q: write a URL like https://hooks.example.org/done", raw)
	case perr != nil || u.Port() != "" && port == 0:
		return nil, refuse(ErrBadEvent, "callback URL %q: port %s is not between 1 and 65535", raw, u.Port())
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r >= 0x80 }):
		return nil, refuse(ErrBadEvent, "callback URL %q: write the host's name in ASCII (xn--…)", raw)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse(ErrBadEvent, "callback URL %q: the scheme %q is neither http nor https", raw, u.Scheme)
	case u.User != nil:
		return nil, refuse(ErrBadEvent, "callback URL: contains a user; receivers check the signature of callbacks instead")
	}
	u.Fragment, u.RawFragment = "", ""
	u.RawQuery = encodeQuery(u.RawQuery)
	return u, nil
}

const maxCallback = 2048

func encodeQuery(query string) string {
	var b strings.Builder
	for i := range len(query) {
		c := query[i]
		broken := c == '%' && (i+2 >= len(query) || !isHex(query[i+1]) || !isHex(query[i+2]))
		if broken || c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// allow returns an error if results may not be sent to u.
func (c *Callbacks) allow(u *url.URL) error {
	if len(c.Hosts) == 0 && len(c.Networks) == 0 {
		return errors.New("no callbacks are allowed: list hosts under events.callbacks in the engine's configuration")
	}
	host := u.Hostname()
	if a, err := netip.ParseAddr(host); err == nil {
		if !c.rule("").Allows(a) {
			return fmt.Errorf("%s is not in events.callbacks.networks", a)
		}
		return nil
	}
	if !c.named(host) && len(c.Networks) == 0 { // otherwise the addresses decide, on connection
		return fmt.Errorf("%s is not in events.callbacks.hosts", host)
	}
	return nil
}

// named reports whether Hosts contains the host.
func (c *Callbacks) named(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return slices.ContainsFunc(c.Hosts, func(h string) bool {
		if below, ok := strings.CutPrefix(h, "*"); ok {
			return strings.HasSuffix(host, below) && len(host) > len(below)
		}
		return h == host
	})
}

// rule returns the addresses allowed for the host: public ones only if Hosts contains the host.
func (c *Callbacks) rule(host string) *outward.Rule {
	return &outward.Rule{Networks: c.Networks, Only: host == "" || !c.named(host), Setting: "events.callbacks.networks"}
}
