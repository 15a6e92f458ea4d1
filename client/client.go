// Package client speaks to a FRE engine over the engine's Unix socket or TLS, with one method
// per route of the API (api/openapi.yaml). A failure reported by the engine is an *api.Error
// (errors.As). If no engine answers, the error is ErrUnreachable.
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
	"strconv"
	"time"

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

// Version returns the version of the engine's program.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return get[api.Version](ctx, c, "/v1/version", nil)
}

// DiskUsage returns the disk usage of the state directory.
func (c *Client) DiskUsage(ctx context.Context) (api.DiskUsage, error) {
	return get[api.DiskUsage](ctx, c, "/v1/system/df", nil)
}

// Leaks returns the resources currently held by the engine's process.
func (c *Client) Leaks(ctx context.Context) (api.Leaks, error) {
	return get[api.Leaks](ctx, c, "/v1/debug/leaks", nil)
}

// Status returns the engine's current load and health.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return get[api.Status](ctx, c, "/v1/status", nil)
}

// DoctorOptions adjust Doctor.
type DoctorOptions struct {
	Costs bool // measure the cost of each check, which takes some tenths of a second
}

// Doctor returns the engine's checks of its host.
func (c *Client) Doctor(ctx context.Context, o DoctorOptions) (api.Doctor, error) {
	return get[api.Doctor](ctx, c, "/v1/doctor", url.Values{"costs": {strconv.FormatBool(o.Costs)}})
}

// TemplateSchema returns the engine's JSON Schema of fret.yaml.
func (c *Client) TemplateSchema(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/template/schema", nil)
}

// CheckTemplate parses and checks the content of a fret.yaml.
func (c *Client) CheckTemplate(ctx context.Context, src []byte) (api.TemplateInfo, error) {
	var out api.TemplateInfo
	err := c.call(ctx, http.MethodPost, "/v1/template/check", nil, "application/yaml", bytes.NewReader(src), &out)
	return out, err
}

// Images returns the local registry's images, newest first.
func (c *Client) Images(ctx context.Context) ([]api.Image, error) {
	return get[[]api.Image](ctx, c, "/v1/images", nil)
}

// ImageChanges returns the changes of the image list since a generation. For 0, the answer has
// the whole list and the generation to continue from.
func (c *Client) ImageChanges(ctx context.Context, since uint64) (api.ImageChanges, error) {
	return get[api.ImageChanges](ctx, c, "/v1/images", url.Values{"since": {strconv.FormatUint(since, 10)}})
}

// EventOptions selects changes.
type EventOptions struct {
	Since   string   // a generation, or an RFC 3339 time; "": from now on
	Follow  bool     // also new changes, until ctx ends
	Kinds   []string // only these kinds; nil: all
	Actions []string // only these actions; nil: all
}

// Events calls emit for each selected change, oldest first. Events returns emit's error, and an
// *api.Error with api.CodeGone if the engine no longer remembers some of the changes.
func (c *Client) Events(ctx context.Context, o EventOptions, emit func(api.Change) error) error {
	q := url.Values{"follow": {strconv.FormatBool(o.Follow)}, "kind": o.Kinds, "action": o.Actions}
	if o.Since != "" {
		q.Set("since", o.Since)
	}
	resp, err := c.send(ctx, http.MethodGet, "/v1/events", q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readLines(ctx, resp.Body, "events", endsWell, func(entry api.ChangeEntry) (bool, error) {
		switch {
		case entry.Error != nil:
			return true, entry.Error
		case entry.Change != nil:
			return false, emit(*entry.Change)
		}
		return false, nil
	})
}

// Image returns the image with the given name, name:version, digest or digest prefix.
func (c *Client) Image(ctx context.Context, ref string) (api.ImageDetails, error) {
	return get[api.ImageDetails](ctx, c, "/v1/images/"+url.PathEscape(ref), nil)
}

// History returns the steps that made an image, last step first.
func (c *Client) History(ctx context.Context, ref string) ([]api.HistoryStep, error) {
	return get[[]api.HistoryStep](ctx, c, "/v1/images/"+url.PathEscape(ref)+"/history", nil)
}

// SBOM returns an image's bill of materials, as CycloneDX JSON.
func (c *Client) SBOM(ctx context.Context, ref string) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/images/"+url.PathEscape(ref)+"/sbom", nil)
}

// TagImage adds a name to an image: "name:version", or "name" for version "latest".
func (c *Client) TagImage(ctx context.Context, ref, name string) (api.Image, error) {
	return post[api.Image](ctx, c, "/v1/images/"+url.PathEscape(ref)+"/tag", api.TagRequest{Name: name})
}

// Slim makes an image of only the files that a temporary function has opened so far. The
// function must be deployed with Trace. The new image has no name; TagImage adds one.
func (c *Client) Slim(ctx context.Context, function string, r api.SlimRequest) (api.Slimmed, error) {
	return post[api.Slimmed](ctx, c, "/v1/functions/"+url.PathEscape(function)+"/slim", r)
}

// RemoveOptions adjust RemoveImage and RemoveContainer.
type RemoveOptions struct {
	Force bool // remove an image with several names by digest, or a running container
}

// RemoveImage removes a name. RemoveImage also removes the image if the name was the last name,
// or if ref is a digest.
func (c *Client) RemoveImage(ctx context.Context, ref string, o RemoveOptions) (api.RemovedImage, error) {
	var out api.RemovedImage
	q := url.Values{"force": {strconv.FormatBool(o.Force)}}
	err := c.call(ctx, http.MethodDelete, "/v1/images/"+url.PathEscape(ref), q, "", nil, &out)
	return out, err
}

// PruneImages removes unused images by the rules of r.
func (c *Client) PruneImages(ctx context.Context, r api.PruneRequest) (api.GCReport, error) {
	return post[api.GCReport](ctx, c, "/v1/images/prune", r)
}

// GC collects garbage by the rules of the engine's configuration.
func (c *Client) GC(ctx context.Context, r api.GCRequest) (api.GCReport, error) {
	return post[api.GCReport](ctx, c, "/v1/system/gc", r)
}

// Functions returns the deployed functions.
func (c *Client) Functions(ctx context.Context) ([]api.Function, error) {
	return get[[]api.Function](ctx, c, "/v1/functions", nil)
}

// Function describes the named function.
func (c *Client) Function(ctx context.Context, name string) (api.FunctionDetails, error) {
	return get[api.FunctionDetails](ctx, c, "/v1/functions/"+url.PathEscape(name), nil)
}

// RemoveFunction removes a function and keeps the image.
func (c *Client) RemoveFunction(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/functions/"+url.PathEscape(name), nil, "", nil, nil)
}

// SandboxOptions adjust Sandboxes.
type SandboxOptions struct {
	All   bool // also the last sandboxes that ended
	Size  bool // with the usage of writable file systems
	Stats bool // with memory and CPU time; several times the cost
}

// Sandboxes returns the running sandboxes.
func (c *Client) Sandboxes(ctx context.Context, o SandboxOptions) ([]api.Sandbox, error) {
	q := url.Values{"all": {strconv.FormatBool(o.All)}, "size": {strconv.FormatBool(o.Size)}, "stats": {strconv.FormatBool(o.Stats)}}
	return get[[]api.Sandbox](ctx, c, "/v1/sandboxes", q)
}

// Stop asks a sandbox, named by an id or an id prefix, to end. Stop kills the sandbox after
// grace.
func (c *Client) Stop(ctx context.Context, id string, grace time.Duration) error {
	q := url.Values{"grace": {grace.String()}}
	return c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/stop", q, "", nil, nil)
}

// Kill ends a sandbox at once.
func (c *Client) Kill(ctx context.Context, id string) error { return c.Signal(ctx, id, "KILL") }

// Signal sends a signal, by name or number, to the first process of a sandbox. The kernel
// delivers the signal only if the process has a handler, unless the signal is KILL. After KILL,
// Signal returns once the sandbox has ended.
func (c *Client) Signal(ctx context.Context, id, signal string) error {
	return c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/kill", url.Values{"signal": {signal}}, "", nil, nil)
}

// Wait waits until a sandbox or container has ended and returns the exit. Wait returns at once
// if the container does not run. A container that has never run has exit code 0.
func (c *Client) Wait(ctx context.Context, id string) (api.Exit, error) {
	var out api.Exit
	err := c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/wait", nil, "", nil, &out)
	return out, err
}

// Processes returns the processes of a running sandbox, oldest first.
func (c *Client) Processes(ctx context.Context, id string) ([]api.Process, error) {
	return get[[]api.Process](ctx, c, "/v1/sandboxes/"+url.PathEscape(id)+"/processes", nil)
}

// LogOptions selects log lines.
type LogOptions struct {
	Tail   int       // only the last Tail lines; -1: all
	Since  time.Time // zero: from the beginning
	Follow bool      // also new lines, until ctx ends
}

// Logs calls emit for each selected log line of a function. Logs returns emit's error.
func (c *Client) Logs(ctx context.Context, name string, o LogOptions, emit func(api.LogLine) error) error {
	q := url.Values{"tail": {strconv.Itoa(o.Tail)}, "follow": {strconv.FormatBool(o.Follow)}}
	if !o.Since.IsZero() {
		q.Set("since", o.Since.UTC().Format(time.RFC3339Nano))
	}
	resp, err := c.send(ctx, http.MethodGet, "/v1/functions/"+url.PathEscape(name)+"/logs", q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readLines(ctx, resp.Body, "logs", endsWell, func(entry api.LogEntry) (bool, error) {
		switch {
		case entry.Error != nil:
			return true, entry.Error
		case entry.Line != nil:
			return false, emit(*entry.Line)
		}
		return false, nil
	})
}

// Event is one event for a function. The zero value is a POST to "/" without a body.
type Event struct {
	Method string
	Path   string
	Query  string // raw
	Header http.Header
	Body   io.Reader
}

// Invoke sends an event to a function and returns the function's answer, whatever the status.
// The caller closes the answer's Body. An *api.Error means that the engine has no answer of the
// function.
func (c *Client) Invoke(ctx context.Context, name string, e Event) (*http.Response, error) {
	q := url.Values{}
	for key, v := range map[string]string{"method": e.Method, "path": e.Path, "query": e.Query} {
		if v != "" {
			q.Set(key, v)
		}
	}
	req, err := c.request(ctx, http.MethodPost, "/v1/functions/"+url.PathEscape(name)+"/invoke", q, e.Body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, e.Header)
	resp, err := c.do(req)
	if err != nil {
		return nil, err
	}
	// Without an invocation id, the answer comes from the engine.
	if resp.Header.Get(api.InvocationHeader) == "" && resp.StatusCode >= 400 {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return resp, nil
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
