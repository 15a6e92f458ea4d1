package outward

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// Proxy is an HTTP proxy on loopback for programs that dial by themselves, such as git. All
// their connections, redirects included, obey the rule. The URL holds a secret: a program that
// knows the URL may use the proxy.
type Proxy struct {
	rule      *Rule
	proxies   *httpproxy.Config
	transport *http.Transport
	server    *http.Server
	url       *url.URL
	secret    string

	tunnels sync.WaitGroup
	ctx     context.Context //nolint:containedctx // the proxy's life, which its tunnels end with
	cancel  context.CancelFunc

	mu      sync.Mutex
	refused error
}

// OpenProxy starts a proxy. The proxy forwards to the proxies that env names, if any, in the
// variables of curl(1).
func (r *Rule) OpenProxy(env []string) (*Proxy, error) {
	proxies := &httpproxy.Config{}
	for _, v := range env {
		switch name, value, _ := strings.Cut(v, "="); strings.ToLower(name) {
		case "http_proxy":
			proxies.HTTPProxy = value
		case "https_proxy":
			proxies.HTTPSProxy = value
		case "no_proxy":
			proxies.NoProxy = value
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open proxy: %w", err)
	}
	secret := rand.Text()
	p := &Proxy{
		rule: r, proxies: proxies, transport: r.transport(proxies), secret: "Basic " + base64.StdEncoding.EncodeToString([]byte("fre:"+secret)),
		url: &url.URL{Scheme: "http", Host: listener.Addr().String(), User: url.UserPassword("fre", secret)},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 30 * time.Second}
	go func() { _ = p.server.Serve(listener) }() // until Close
	return p, nil
}

// URL returns the URL for the program, with the secret.
func (p *Proxy) URL() string { return p.url.String() }

// Refused returns a *[RefusedError] if the proxy has refused a request, else nil.
func (p *Proxy) Refused() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Close ends all connections and waits for the tunnels.
func (p *Proxy) Close() error {
	p.cancel()
	err := p.server.Close()
	p.tunnels.Wait()
	p.transport.CloseIdleConnections()
	return err
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given := r.Header.Get("Proxy-Authorization")
	if subtle.ConstantTimeCompare([]byte(given), []byte(p.secret)) != 1 {
		w.Header().Set("Proxy-Authenticate", `Basic realm="fre"`)
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	r.Header.Del("Proxy-Authorization")
	r.Header.Del("Proxy-Connection")
	if r.Method == http.MethodConnect {
		p.tunnel(w, r)
		return
	}
	out := r.Clone(r.Context())
	out.RequestURI = ""
	resp, err := p.transport.RoundTrip(out)
	if err != nil {
		p.fail(w, err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the client notices a broken connection
}

func (p *Proxy) fail(w http.ResponseWriter, err error) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		p.mu.Lock()
		p.refused = refused
		p.mu.Unlock()
		http.Error(w, refused.Error(), http.StatusForbidden)
		return
	}
	http.Error(w, err.Error(), http.StatusBadGateway)
}

// tunnel copies bytes between the client and a server.
func (p *Proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	server, err := p.connect(r.Context(), r.Host)
	if err != nil {
		p.fail(w, err)
		return
	}
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = server.Close()
		return
	}
	p.tunnels.Add(1)
	defer p.tunnels.Done()
	defer context.AfterFunc(p.ctx, func() { _, _ = client.Close(), server.Close() })()
	defer func() { _, _ = client.Close(), server.Close() }()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(server, buffered) // the end of either side ends the tunnel
		closeWrite(server)
	}()
	_, _ = io.Copy(client, server)
	closeWrite(client)
	<-done
}

func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = c.Close()
}

// connect connects to a server, through the operator's proxy if one is set for the server.
func (p *Proxy) connect(ctx context.Context, address string) (net.Conn, error) {
	next, err := p.rule.proxy(ctx, p.proxies.ProxyFunc(), &url.URL{Scheme: "https", Host: address})
	if err != nil {
		return nil, err
	}
	if next == nil {
		return p.rule.DialContext(ctx, "tcp", address)
	}
	conn, err := p.rule.through(p.proxies).DialContext(ctx, "tcp", Address(next))
	if err != nil {
		return nil, err
	}
	ask := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if next.User != nil {
		password, _ := next.User.Password()
		ask.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(next.User.Username()+":"+password)))
	}
	err = ask.Write(conn)
	if err == nil {
		var resp *http.Response
		resp, err = http.ReadResponse(bufio.NewReader(byteReader{io.LimitReader(conn, 16<<10)}), ask) //nolint:bodyclose // what follows the head is the tunnel
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("the proxy %s answers %s for %s", next.Host, resp.Status, address)
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// byteReader reads one byte at a time: bytes after the proxy's answer belong to the server.
type byteReader struct{ from io.Reader }

func (r byteReader) Read(p []byte) (int, error) { return r.from.Read(p[:min(1, len(p))]) }
