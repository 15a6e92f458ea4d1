// Package load calls an HTTP/1.1 server and measures rates and latencies: as fast as the server
// answers on a number of connections (closed loop), or at a fixed rate that does not depend on the
// answers (open loop). Run does the whole measurement; a Report can be written as text, JSON and
// SVG.
//
// The two loops answer different questions. In a closed loop a stalled server receives fewer
// requests: a stall of a second shows only as one slow answer per connection. This effect is called
// coordinated omission. Percentiles of a closed loop show how long answers took, not how long a new
// client would wait. In an open loop requests are due at fixed times. Each latency counts from the
// due time, even if the request was sent later because every connection was busy. vegeta's Attacker
// keeps the rate, through a transport of this package.
//
// The package's HTTP client parses only the header fields that determine the end of an answer,
// drains bodies in reads of 256 KiB, and allocates nothing per request in a closed loop.
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

// ErrConfig reports a Config that cannot be used. The error's text gives the reason.
var ErrConfig = errors.New("cannot be asked for")

// Config describes a measurement: the requests, the load and the duration.
type Config struct {
	URL    string   // required: http or https
	More   []string // further URLs of the same server, requested in turn with URL
	Method string   // default: GET, or POST if Body is set
	Header http.Header
	Body   []byte

	// Unix is the path of a Unix socket that replaces the URL's host.
	Unix string
	// TLS is for https; default: the system's certificates.
	TLS *tls.Config

	// Rate is the requests per second of an open loop; 0: closed loop.
	Rate float64
	// Connections is the number of connections of a closed loop (default 1), and the maximum of an
	// open loop (default 1000). In an open loop a request that finds all connections busy waits,
	// and the wait counts.
	Connections int

	Duration time.Duration // measured; default 10 s
	WarmUp   time.Duration // time before Duration, not measured
	Timeout  time.Duration // of one request, from sending; default 30 s
}

// plan is a checked Config.
type plan struct {
	Config
	remote
	requests [][]byte
	turn     atomic.Uint64
	url      *url.URL
}

// request returns the next request in turn.
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
	u, err := c.check()
	if err != nil {
		return bad("%w", err)
	}
	p.url = u
	p.setDefaults()
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

// check returns the address of the server.
func (c *Config) check() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("URL %q: give a whole one, such as http://localhost:8080/function/hello", c.URL)
	case c.Rate < 0 || c.Rate > 1e9:
		return nil, fmt.Errorf("a rate of %v requests a second", c.Rate)
	case c.Connections < 0 || min(c.Duration, c.WarmUp, c.Timeout) < 0:
		return nil, fmt.Errorf("%d connections, %v after %v, time-out %v: nothing may be negative", c.Connections, c.Duration, c.WarmUp, c.Timeout)
	}
	return u, nil
}

func (c *Config) setDefaults() {
	if c.Method == "" {
		c.Method = http.MethodGet
		if len(c.Body) > 0 {
			c.Method = http.MethodPost
		}
	}
	if c.Connections == 0 {
		c.Connections = 1
		if c.Rate > 0 {
			c.Connections = 1000
		}
	}
	if c.Duration == 0 {
		c.Duration = 10 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
}

// newRemote returns the remote of a URL's server.
func newRemote(u *url.URL, config *tls.Config, timeout time.Duration) remote {
	r := remote{network: "tcp", address: u.Host, timeout: timeout}
	if u.Port() == "" {
		r.address = net.JoinHostPort(u.Hostname(), u.Scheme) // a dialer takes the service's name, http or https, as a port
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

// framing lists the headers that determine the end of a message or of the connection. The caller
// must not set these headers.
var framing = []string{"Connection", "Content-Length", "Transfer-Encoding", "Expect", "Upgrade"}

// head returns the request for a target up to the body (RFC 9112, 2 and 3).
func (p *plan) head(target string) ([]byte, error) {
	if !httpguts.ValidHeaderFieldName(p.Method) { // methods and field names are both tokens
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

// Run calls the server and returns a report. If ctx ends, the run ends early, and the report covers
// the time until then without an error. The error is ErrConfig, or says that the first connection
// failed; later errors are counted in the report.
func Run(ctx context.Context, c Config) (*Report, error) {
	p, err := c.plan()
	if err != nil {
		return nil, err
	}
	// A caller with a wrong port wants an error, not a report full of errors.
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

// closed keeps every connection busy: the next request is sent as soon as the last answer has
// arrived. Each connection measures at least one request, however short the run is.
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

// errorPause is the pause of a closed loop's connection after an error. Without the pause a server
// that refuses connections would be called in a busy loop.
const errorPause = 10 * time.Millisecond

// pause waits for d, and returns false if ctx ends first.
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
