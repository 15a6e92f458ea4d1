// Package client speaks to a FRE engine over its Unix socket: one method per
// route of the API (api/openapi.yaml). A failure the engine reports is an
// *api.Error (errors.As); an engine that does not answer is ErrUnreachable.
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

// DefaultSocket is where an engine listens that was told nothing else.
const DefaultSocket = "/run/fre/fre.sock"

// ErrUnreachable says that no engine answered on the socket.
var ErrUnreachable = errors.New("engine not reachable: is `fre serve` running?")

// Client is safe for use by several goroutines.
type Client struct {
	base  string // URL without a path
	token string // "" for none
	http  *http.Client
	dial  func(ctx context.Context) (net.Conn, error)
}

// New returns a client of the engine at socket; "" means DefaultSocket. It
// connects when it is first used.
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

// Remote is an engine's control API on another host (fre serve --api-listen).
type Remote struct {
	Host  string      // https://HOST:PORT; http on loopback alone, so that no token is sent in the clear
	Token string      // "" for none, which the engine refuses
	TLS   *tls.Config // nil: the host's authorities (SSL_CERT_FILE and SSL_CERT_DIR name others)
}

// NewRemote returns a client of an engine elsewhere.
func NewRemote(r Remote) (*Client, error) {
	u, err := url.Parse(r.Host)
	if err != nil || u.Host == "" || u.Path != "" && u.Path != "/" || u.User != nil || u.RawQuery != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("%q is no engine's URL: write https://HOST:PORT", r.Host)
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
		// Commands that take the connection over need HTTP/1.1.
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
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // whom else the token would go to
	}
	return c, nil
}

// Close drops idle connections.
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

// authorize shows the token.
func (c *Client) authorize(r *http.Request) {
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
}

// Version asks which program answers.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return get[api.Version](ctx, c, "/v1/version", nil)
}

// DiskUsage returns what the state directory holds.
func (c *Client) DiskUsage(ctx context.Context) (api.DiskUsage, error) {
	return get[api.DiskUsage](ctx, c, "/v1/system/df", nil)
}

// Leaks tells what the engine's own program holds now.
func (c *Client) Leaks(ctx context.Context) (api.Leaks, error) {
	return get[api.Leaks](ctx, c, "/v1/debug/leaks", nil)
}

// Status tells how much the engine has to do, and how it does.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return get[api.Status](ctx, c, "/v1/status", nil)
}

// DoctorOptions adjust Doctor.
type DoctorOptions struct {
	Costs bool // measure what things take there, which is some tenths of a second of work
}

// Doctor asks what the engine found out about its host.
func (c *Client) Doctor(ctx context.Context, o DoctorOptions) (api.Doctor, error) {
	return get[api.Doctor](ctx, c, "/v1/doctor", url.Values{"costs": {strconv.FormatBool(o.Costs)}})
}

// TemplateSchema returns the JSON Schema of fret.yaml as the engine has it.
func (c *Client) TemplateSchema(ctx context.Context) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/template/schema", nil)
}

// CheckTemplate parses the content of a fret.yaml.
func (c *Client) CheckTemplate(ctx context.Context, src []byte) (api.TemplateInfo, error) {
	var out api.TemplateInfo
	err := c.call(ctx, http.MethodPost, "/v1/template/check", nil, "application/yaml", bytes.NewReader(src), &out)
	return out, err
}

// Images lists the local registry, newest first.
func (c *Client) Images(ctx context.Context) ([]api.Image, error) {
	return get[[]api.Image](ctx, c, "/v1/images", nil)
}

// ImageChanges tells what has become of the list of images since a generation: 0
// for the whole list with the generation to go on from.
func (c *Client) ImageChanges(ctx context.Context, since uint64) (api.ImageChanges, error) {
	return get[api.ImageChanges](ctx, c, "/v1/images", url.Values{"since": {strconv.FormatUint(since, 10)}})
}

// EventOptions select changes.
type EventOptions struct {
	Since   string   // a generation, or an RFC 3339 time; "": from now on
	Follow  bool     // new ones too, until ctx ends
	Kinds   []string // only of these; nil: all
	Actions []string // likewise
}

// Events calls emit for each change of what lists show, oldest first. It returns
// emit's error, and an *api.Error with api.CodeGone where changes are missing.
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

// Image finds an image by name, name:version, digest or a prefix of it.
func (c *Client) Image(ctx context.Context, ref string) (api.ImageDetails, error) {
	return get[api.ImageDetails](ctx, c, "/v1/images/"+url.PathEscape(ref), nil)
}

// History tells how an image was made, the last step first.
func (c *Client) History(ctx context.Context, ref string) ([]api.HistoryStep, error) {
	return get[[]api.HistoryStep](ctx, c, "/v1/images/"+url.PathEscape(ref)+"/history", nil)
}

// SBOM is an image's bill of materials, CycloneDX in JSON.
func (c *Client) SBOM(ctx context.Context, ref string) (json.RawMessage, error) {
	return get[json.RawMessage](ctx, c, "/v1/images/"+url.PathEscape(ref)+"/sbom", nil)
}

// TagImage gives an image one more name, "name:version" or "name" for version
// "latest".
func (c *Client) TagImage(ctx context.Context, ref, name string) (api.Image, error) {
	return post[api.Image](ctx, c, "/v1/images/"+url.PathEscape(ref)+"/tag", api.TagRequest{Name: name})
}

// Slim makes of the image that a temporary function runs, deployed with Trace, one
// that holds what it has opened so far. That has no name: TagImage gives it one.
func (c *Client) Slim(ctx context.Context, function string, r api.SlimRequest) (api.Slimmed, error) {
	return post[api.Slimmed](ctx, c, "/v1/functions/"+url.PathEscape(function)+"/slim", r)
}

// RemoveOptions adjust RemoveImage and RemoveContainer.
type RemoveOptions struct {
	Force bool // an image with several names by its digest, a container that runs
}

// RemoveImage takes a name away, and with an image's last name, or given a
// digest, the image.
func (c *Client) RemoveImage(ctx context.Context, ref string, o RemoveOptions) (api.RemovedImage, error) {
	var out api.RemovedImage
	q := url.Values{"force": {strconv.FormatBool(o.Force)}}
	err := c.call(ctx, http.MethodDelete, "/v1/images/"+url.PathEscape(ref), q, "", nil, &out)
	return out, err
}

// PruneImages removes images that nobody uses.
func (c *Client) PruneImages(ctx context.Context, r api.PruneRequest) (api.GCReport, error) {
	return post[api.GCReport](ctx, c, "/v1/images/prune", r)
}

// GC collects garbage by the rules of the engine's configuration.
func (c *Client) GC(ctx context.Context, r api.GCRequest) (api.GCReport, error) {
	return post[api.GCReport](ctx, c, "/v1/system/gc", r)
}

// Functions lists what is deployed.
func (c *Client) Functions(ctx context.Context) ([]api.Function, error) {
	return get[[]api.Function](ctx, c, "/v1/functions", nil)
}

// Function describes one function.
func (c *Client) Function(ctx context.Context, name string) (api.FunctionDetails, error) {
	return get[api.FunctionDetails](ctx, c, "/v1/functions/"+url.PathEscape(name), nil)
}

// RemoveFunction takes a function away; its image stays.
func (c *Client) RemoveFunction(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/functions/"+url.PathEscape(name), nil, "", nil, nil)
}

// SandboxOptions adjust Sandboxes.
type SandboxOptions struct {
	All   bool // the last ones that ended, too
	Size  bool // with what they hold in their writable file systems
	Stats bool // with memory and CPU time: several times the cost
}

// Sandboxes lists what runs.
func (c *Client) Sandboxes(ctx context.Context, o SandboxOptions) ([]api.Sandbox, error) {
	q := url.Values{"all": {strconv.FormatBool(o.All)}, "size": {strconv.FormatBool(o.Size)}, "stats": {strconv.FormatBool(o.Stats)}}
	return get[[]api.Sandbox](ctx, c, "/v1/sandboxes", q)
}

// Stop asks a sandbox, named by its id or a prefix, to end, and kills it when
// grace is over.
func (c *Client) Stop(ctx context.Context, id string, grace time.Duration) error {
	q := url.Values{"grace": {grace.String()}}
	return c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/stop", q, "", nil, nil)
}

// Kill ends a sandbox at once.
func (c *Client) Kill(ctx context.Context, id string) error { return c.Signal(ctx, id, "KILL") }

// Signal sends a signal, by name or number, to the first process of a sandbox, which
// has to have a handler for it, unless it is KILL: then it has ended.
func (c *Client) Signal(ctx context.Context, id, signal string) error {
	return c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/kill", url.Values{"signal": {signal}}, "", nil, nil)
}

// Wait returns how a sandbox or container ended, once it has: at once of one that
// does not run. One that has not run yet has ended with code 0.
func (c *Client) Wait(ctx context.Context, id string) (api.Exit, error) {
	var out api.Exit
	err := c.call(ctx, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(id)+"/wait", nil, "", nil, &out)
	return out, err
}

// Processes lists those of a sandbox that runs, the oldest first.
func (c *Client) Processes(ctx context.Context, id string) ([]api.Process, error) {
	return get[[]api.Process](ctx, c, "/v1/sandboxes/"+url.PathEscape(id)+"/processes", nil)
}

// LogOptions select log lines.
type LogOptions struct {
	Tail   int       // only the last lines; -1 for all
	Since  time.Time // zero: from the beginning
	Follow bool      // until ctx ends
}

// Logs calls emit for each line a function wrote. It returns emit's error.
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

// Event is one invocation. Its zero value is a POST of nothing to "/".
type Event struct {
	Method string
	Path   string
	Query  string // raw
	Header http.Header
	Body   io.Reader
}

// Invoke hands an event to a function and returns its answer as it is, whatever
// its status; the caller closes its Body. An *api.Error means that the engine
// has no answer of the function.
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
	// Without an invocation it is an answer of the engine.
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

// post sends a JSON body and decodes the answer.
func post[T any](ctx context.Context, c *Client, path string, body any) (T, error) {
	var out T
	resp, err := c.sendJSON(ctx, path, body)
	if err != nil {
		return out, err
	}
	return out, decode(ctx, resp, &out)
}

// sendJSON is send for a body of JSON.
func (c *Client) sendJSON(ctx context.Context, path string, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, http.MethodPost, path, nil, http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(b))
}

// call sends a request and decodes the JSON answer into out, where not nil.
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

// lastLine says whether a streamed answer may end without a line that ends it.
type lastLine bool

const (
	endsWell  lastLine = false
	endsShort lastLine = true
)

// readLines has each line of a streamed answer taken, until one was the last.
func readLines[T any](ctx context.Context, body io.Reader, what string, last lastLine, take func(T) (done bool, err error)) error {
	for d := json.NewDecoder(body); ; {
		var line T
		err := d.Decode(&line)
		if errors.Is(err, io.EOF) {
			if last == endsWell && ctx.Err() == nil { // over TLS the engine may hear of a client's end before the connection is closed
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

// send returns the answer of a request that succeeded.
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

// do strips what net/http adds to errors: a URL nobody typed.
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

// orCause prefers the reason why ctx ended to what its end broke.
func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// readError makes an *api.Error of an answer that reports a failure, also of
// one that is not ours.
func readError(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what could be read is all there is to say
	var body api.ErrorBody
	if err := json.Unmarshal(raw, &body); err != nil || body.Error == nil {
		body.Error = &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("engine answered %s: %.200s", resp.Status, raw)}
	}
	body.Error.Status = resp.StatusCode
	return body.Error
}
