// Package load calls an HTTP/1.1 server and measures how it does: as fast as it
// answers on a number of connections (a closed loop), or at a rate that does not
// depend on the answers (an open loop). Run is all of it; a Report is written as
// text, JSON and SVG.
//
// The two answer different questions. In a closed loop a server that stalls is
// asked less while it stalls: one slow answer for each connection is all that
// shows of a second in which nobody was served. This is coordinated omission,
// and percentiles of a closed loop say only how long an answer took, not how
// long somebody who comes by would wait. In an open loop requests are due at
// fixed times; each latency counts from when its request was due, also where it
// was sent later because every connection was taken. Rates are kept by vegeta's
// Attacker, through a transport of this package's own.
//
// Connections are driven by a client that parses no more of an answer than its
// end takes, drains bodies in reads of 256 KiB, and allocates nothing for each
// request of a closed loop.
package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

// ErrConfig says that a Config cannot be carried out; the error says why.
var ErrConfig = errors.New("cannot be asked for")

// Config says what to call, how, and for how long.
type Config struct {
	URL    string   // required: http or https
	More   []string // further ones of the same server, asked for in turn with URL
	Method string   // default: GET, POST with a body
	Header http.Header
	Body   []byte

	// Unix is the path of a Unix socket to connect to instead of the URL's host.
	Unix string
	// TLS is for https; default: the system's certificates.
	TLS *tls.Config

	// Rate is requests per second at open loop; 0: closed loop.
	Rate float64
	// Connections are kept open in a closed loop (default 1), and are the most at
	// once in an open one (default 1000): what is due while all are taken waits,
	// and its wait counts.
	Connections int

	Duration time.Duration // measured; default 10 s
	WarmUp   time.Duration // before that, not measured
	Timeout  time.Duration // of one request, from its sending; default 30 s
}

// plan is a Config that was checked.
type plan struct {
	Config
	remote
	requests [][]byte
	turn     atomic.Uint64
	url      *url.URL
}

// request is the one whose turn it is.
func (p *plan) request() []byte {
	if len(p.requests) == 1 {
		return p.requests[0]
	}
	return p.requests[(p.turn.Add(1)-1)%uint64(len(p.requests))]
}

func (c Config) plan() (*plan, error) {
	p := &plan{Config: c}
	bad := func(format string, args ...any) (*plan, error) {
		return nil, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return bad("%w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return bad("URL %q: give a whole one, such as http://localhost:8080/function/hello", c.URL)
	case c.Rate < 0 || c.Rate > 1e9:
		return bad("a rate of %v requests a second", c.Rate)
	case c.Connections < 0 || c.Duration < 0 || c.WarmUp < 0 || c.Timeout < 0:
		return bad("%d connections, %v after %v, time-out %v: nothing may be negative", c.Connections, c.Duration, c.WarmUp, c.Timeout)
	}
	p.url = u
	if p.Method == "" {
		p.Method = http.MethodGet
		if len(c.Body) > 0 {
			p.Method = http.MethodPost
		}
	}
	if p.Connections == 0 {
		p.Connections = 1
		if p.Rate > 0 {
			p.Connections = 1000
		}
	}
	if p.Duration == 0 {
		p.Duration = 10 * time.Second
	}
	if p.Timeout == 0 {
		p.Timeout = 30 * time.Second
	}
	if p.Rate*p.Duration.Seconds() > 0 && p.Rate*p.Duration.Seconds() < 1 {
		return bad("%v requests a second for %v is no request", p.Rate, p.Duration)
	}
	p.remote = newRemote(u, c.TLS, p.Timeout)
	if c.Unix != "" {
		p.network, p.address = "unix", c.Unix
	}
	for _, text := range append([]string{c.URL}, c.More...) {
		of, err := url.Parse(text)
		if err == nil && (of.Scheme != u.Scheme || of.Host != u.Host) {
			err = fmt.Errorf("URL %q: all are to be of one server, %s://%s", text, u.Scheme, u.Host)
		}
		if err != nil {
			return bad("%w", err)
		}
		request, err := p.head(of.RequestURI())
		if err != nil {
			return bad("%w", err)
		}
		p.requests = append(p.requests, append(request, c.Body...))
	}
	return p, nil
}

// newRemote is a URL's server.
func newRemote(u *url.URL, config *tls.Config, timeout time.Duration) remote {
	r := remote{network: "tcp", address: u.Host, timeout: timeout}
	if u.Port() == "" {
		r.address = net.JoinHostPort(u.Hostname(), u.Scheme) // a service's name is a port
	}
	if u.Scheme == "https" {
		r.tls = config.Clone()
		if r.tls == nil {
			r.tls = &tls.Config{}
		}
		if r.tls.ServerName == "" {
			r.tls.ServerName = u.Hostname()
		}
		r.tls.NextProtos = []string{"http/1.1"}
	}
	return r
}

// framing are the headers that say where a message ends, which is not the
// caller's to say.
var framing = []string{"Connection", "Content-Length", "Transfer-Encoding", "Expect", "Upgrade"}

// head is the request for a target up to its body (RFC 9112, 2 and 3).
func (p *plan) head(target string) ([]byte, error) {
	if !httpguts.ValidHeaderFieldName(p.Method) { // both are tokens
		return nil, fmt.Errorf("method %q", p.Method)
	}
	if p.Method == http.MethodConnect {
		return nil, errors.New("CONNECT: what follows is no HTTP")
	}
	host := p.url.Host
	if h := p.Header.Get("Host"); h != "" {
		host = h
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", p.Method, target, host)
	if p.Header.Get("User-Agent") == "" {
		b.WriteString("User-Agent: fre-bench\r\n")
	}
	names := make([]string, 0, len(p.Header))
	for name := range p.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if slices.Contains(framing, http.CanonicalHeaderKey(name)) {
			return nil, fmt.Errorf("header %s: it is the tool's own", name)
		}
		for _, value := range p.Header[name] {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return nil, fmt.Errorf("header %q: %q", name, value)
			}
			if http.CanonicalHeaderKey(name) != "Host" {
				fmt.Fprintf(&b, "%s: %s\r\n", name, value)
			}
		}
	}
	if len(p.Body) > 0 || p.Method == http.MethodPost || p.Method == http.MethodPut || p.Method == http.MethodPatch {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(p.Body))
	}
	b.WriteString("\r\n")
	return []byte(b.String()), nil
}

// Run calls the server and reports. The end of ctx ends the run early: the
// report is then of what was measured until then, and no error. Errors are
// ErrConfig, and that the server could not be reached at all; what goes wrong
// later is counted in the report.
func Run(ctx context.Context, c Config) (*Report, error) {
	p, err := c.plan()
	if err != nil {
		return nil, err
	}
	// Whoever names a wrong port wants to be told so, not to get a report of errors.
	first, err := p.dial(ctx, readSize)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", p.address, err)
	}
	rec := newRecorder(p)
	if p.Rate > 0 {
		rec.run(ctx, func(ctx context.Context) { open(ctx, p, rec, first) })
	} else {
		rec.run(ctx, func(ctx context.Context) { closed(ctx, p, rec, first) })
	}
	return rec.report(ctx.Err() != nil), nil
}

// closed keeps every connection busy: its next request is sent when the last
// one's answer is there. Each measures one at least, however short the run.
func closed(ctx context.Context, p *plan, rec *recorder, first *conn) {
	var wait sync.WaitGroup
	for i := range p.Connections {
		c := &session{plan: p}
		if i == 0 {
			c.conn = first
		}
		wait.Go(func() {
			defer c.close()
			s := rec.shard(i)
			for measured := false; ctx.Err() == nil; {
				sent := time.Now()
				if measured && !sent.Before(rec.end) {
					return
				}
				measured = !sent.Before(rec.start)
				a, err := c.call(ctx)
				if err != nil && ctx.Err() != nil {
					s.unfinished(sent, time.Now())
					return
				}
				s.add(outcome{due: sent, sent: sent, end: time.Now(), answer: a, err: err})
				if err != nil && !pause(ctx, errorPause) {
					return
				}
			}
		})
	}
	wait.Wait()
}

// errorPause is how long a connection of a closed loop rests after an error, for
// a server that refuses connections would otherwise be asked without end.
const errorPause = 10 * time.Millisecond

// pause waits; it is false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
