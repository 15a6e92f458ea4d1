// Package client speaks to a FRE engine over the engine's Unix socket or TLS, with one method
// per route of the API (api/openapi.yaml). A failure reported by the engine is an *api.Error
// (errors.As). If no engine answers, the error is ErrUnreachable.
//
// The methods stand in groups by noun: [Functions], [Images], [Sandboxes], [Containers],
// [Agents], [Queue], [Tenants], [Tokens], [Secrets], [Nodes] and [Debug]. [Client] itself has the
// methods for the engine as a whole, such as [Client.Status].
//
//	c := client.New("")
//	defer c.Close()
//	_, err := c.Functions().DeployDir(ctx, "hello", api.DeployRequest{}, nil, report)
//	…
//	resp, err := c.Functions().Invoke(ctx, "hello", client.Event{Body: strings.NewReader("{}")})
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/fre-engine/fre/api"
)

// DefaultSocket is the engine's default socket.
const DefaultSocket = "/run/fre/fre.sock"

// ErrUnreachable means that no engine answered.
var ErrUnreachable = errors.New("engine not reachable: is `fre serve` running?")

// Client calls the API of one engine. A Client is safe for concurrent use.
type Client struct {
	base  string // URL without a path
	token string // "" for none
	http  *http.Client
	dial  func(ctx context.Context) (net.Conn, error)
}

// New returns a client of the engine at socket; "" means DefaultSocket. The client connects on
// first use.
func New(socket string) *Client {
	if socket == "" {
		socket = DefaultSocket
	}
	c := &Client{base: "http://fre", dial: dialer("unix", socket)}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableCompression: true, // the socket is local
	}}
	return c
}

// Remote describes an engine's control API on another host (fre serve --api-listen).
type Remote struct {
	Host  string      // https://HOST:PORT; http only on loopback, to keep tokens off the network
	Token string      // "": no token, which the engine refuses
	TLS   *tls.Config // nil: the host's authorities (SSL_CERT_FILE and SSL_CERT_DIR override them)
}

// NewRemote returns a client of an engine on another host.
func NewRemote(r Remote) (*Client, error) {
	u, err := url.Parse(r.Host)
	if err != nil || u.Host == "" || u.Path != "" && u.Path != "/" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("%q is not an engine's URL: write https://HOST:PORT", r.Host)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%q would send the token in the clear: write https://", r.Host)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	plain := dialer("tcp", net.JoinHostPort(u.Hostname(), port))
	c := &Client{base: u.Scheme + "://" + u.Host, token: r.Token, dial: plain}
	if u.Scheme == "https" {
		secure := &tls.Config{}
		if r.TLS != nil {
			secure = r.TLS.Clone()
		}
		if secure.ServerName == "" {
			secure.ServerName = u.Hostname()
		}
		// Commands that take over the connection need HTTP/1.1.
		secure.NextProtos = []string{"http/1.1"}
		c.dial = func(ctx context.Context) (net.Conn, error) {
			raw, err := plain(ctx)
			if err != nil {
				return nil, err
			}
			conn := tls.Client(raw, secure)
			if err := conn.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(fmt.Errorf("TLS with %s: %w", u.Host, err), raw.Close())
			}
			return conn, nil
		}
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) }
	c.http = &http.Client{
		Transport:     &http.Transport{DialContext: dial, DialTLSContext: dial},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a redirect would send the token to another host
	}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func dialer(network, address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		if err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("%w (%w)", ErrUnreachable, err)
		}
		return conn, err
	}
}

// authorize adds the token to r.
func (c *Client) authorize(r *http.Request) {
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
}

func get[T any](ctx context.Context, c *Client, path string, q url.Values) (T, error) {
	var out T
	err := c.call(ctx, http.MethodGet, path, q, "", nil, &out)
	return out, err
}

// post sends body as JSON and decodes the answer.
func post[T any](ctx context.Context, c *Client, path string, body any) (T, error) {
	var out T
	resp, err := c.sendJSON(ctx, path, body)
	if err != nil {
		return out, err
	}
	return out, decode(ctx, resp, &out)
}

// sendJSON is send with a JSON body.
func (c *Client) sendJSON(ctx context.Context, path string, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, http.MethodPost, path, nil, http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(b))
}

// call sends a request and decodes the JSON answer into out, unless out is nil.
func (c *Client) call(ctx context.Context, method, path string, q url.Values, contentType string, body io.Reader, out any) error {
	var header http.Header
	if contentType != "" {
		header = http.Header{"Content-Type": {contentType}}
	}
	resp, err := c.send(ctx, method, path, q, header, body)
	if err != nil {
		return err
	}
	return decode(ctx, resp, out)
}

func decode(ctx context.Context, resp *http.Response, out any) error {
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("read answer of %s %s: %w", resp.Request.Method, resp.Request.URL.Path, orCause(ctx, err))
	}
	return nil
}

// lastLine tells how a streamed answer ends: endsShort requires an explicit last line, and
// endsWell does not.
type lastLine bool

const (
	endsWell  lastLine = false
	endsShort lastLine = true
)

// readLines calls take for each line of a streamed answer until take is done.
func readLines[T any](ctx context.Context, body io.Reader, what string, last lastLine, take func(T) (done bool, err error)) error {
	for d := json.NewDecoder(body); ; {
		var line T
		err := d.Decode(&line)
		if errors.Is(err, io.EOF) {
			if last == endsWell && ctx.Err() == nil { // over TLS, the engine may notice the end of ctx first and end the stream cleanly
				return nil
			}
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("engine broke off the %s: %w", what, orCause(ctx, err))
		}
		if done, err := take(line); done || err != nil {
			return err
		}
	}
}

// send sends a request and returns the answer. An answer with status 400 or above is an error.
func (c *Client) send(ctx context.Context, method, path string, q url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	req, err := c.request(ctx, method, path, q, body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	resp, err := c.do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return resp, nil
}

func (c *Client) request(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Request, error) {
	target := c.base + path
	if len(q) > 0 {
		target += "?" + q.Encode()
	}
	return http.NewRequestWithContext(ctx, method, target, body)
}

// do sends req. do removes the URL that net/http adds to errors, because no user typed the URL.
func (c *Client) do(req *http.Request) (*http.Response, error) {
	c.authorize(req)
	resp, err := c.http.Do(req)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	if err != nil {
		return nil, orCause(req.Context(), err)
	}
	return resp, nil
}

// orCause returns the cause of ctx's end, or err while ctx is alive.
func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// readError turns a failed answer into an *api.Error, even if the answer is not in the API's
// format.
func readError(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // after a read error, report the part read so far
	var body api.ErrorBody
	if err := json.Unmarshal(raw, &body); err != nil || body.Error == nil {
		body.Error = &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("engine answered %s: %.200s", resp.Status, raw)}
	}
	body.Error.Status = resp.StatusCode
	return body.Error
}
