package httpserver

import (
	"errors"
	"net/http"
	"time"
)

// ErrNoSwitch means that the connection cannot change protocols.
var ErrNoSwitch = errors.New("the connection cannot change protocols")

// Switch answers 101 (RFC 9110 section 15.2.2) with the fields set so far, including Upgrade, and
// turns the connection into a tunnel. The tunnel ends when no byte has moved for idle. Switch
// returns [ErrNoSwitch], and sends nothing, if the request does not ask for an upgrade, has a
// body, or is not HTTP/1.1.
func (x *Exchange) Switch(idle time.Duration) (*Tunnel, error) {
	c, ok := x.over.(*conn)
	if !ok || x.begun || x.err != nil || !x.Upgrade || x.Minor != 1 || x.Body != nil {
		return nil, ErrNoSwitch
	}
	c.watcher.stop()
	x.begun, x.closes, x.hollow, x.missing = true, true, true, 0
	b := append(c.out[:0], "HTTP/1.1 101 "...)
	b = append(b, http.StatusText(http.StatusSwitchingProtocols)...)
	b = append(b, "\r\nDate: "...)
	b = append(b, date()...)
	b = append(b, "\r\nConnection: Upgrade\r\n"...)
	b = append(b, x.fields...)
	c.out = append(b, "\r\n"...)
	if err := x.sent(c.write(c.out)); err != nil {
		return nil, err
	}
	t := &Tunnel{l: &c.link, idle: idle}
	t.read.L = &t.mu
	t.last.Store(time.Now().UnixNano())
	c.tunnel = t
	return t, nil
}
