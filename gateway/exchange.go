package gateway

import (
	"bytes"
	"cmp"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
)

// exchange is one request to the gateway, with its log line.
type exchange struct {
	*httpserver.Exchange
	g      *Gateway
	client client
	begun  time.Time
	id     string // of the request
	secret bool   // Authorization is for the gateway, not for the function
	cors   bool   // the gateway decides on allowed origins

	named string // function as spelled in the path

	// For the access log.
	function   string
	invocation string
	code       string // error code, "" if none
	cold       bool
	status     int
	bytes      int64
}

var slash = []byte{'/'}

// addressed splits rest into the function's name, one part per hop, and the event's path. For a
// malformed path it answers 400 and returns false.
func (e *exchange) addressed(rest []byte, hops ...*string) (name string, path []byte, ok bool) {
	escaped, path, _ := bytes.Cut(rest, slash)
	for _, hop := range hops {
		var part []byte
		part, path, _ = bytes.Cut(path, slash)
		*hop = string(part)
	}
	e.named = string(escaped)
	name, err := url.PathUnescape(e.named)
	if err == nil {
		if e.g.OpenFaaS != nil {
			name = strings.TrimSuffix(name, "."+OpenFaaSNamespace)
		}
		e.function = name
		path, err = eventPath(path)
	}
	if err != nil {
		e.refuse(failure.BadPath, err.Error())
	}
	return name, path, err == nil
}

// describe sets r to the client's request, with path as the event's path. It returns the body, nil
// if there is none.
func (e *exchange) describe(r *engine.Request, path []byte) *eventBody {
	*r = engine.Request{Method: string(e.Method), Path: string(path), Query: string(e.Query), Headers: e.eventHeader()}
	if e.Body == nil {
		return nil
	}
	b := &eventBody{from: e.Body, interrupt: e.Body.Close, size: e.Body.Size(), limit: e.g.MaxBodyBytes}
	r.Body, r.Length = b, b.size
	return b
}

// eventHeader returns the header of the event: the client's end-to-end fields, and the origin of
// the request.
func (e *exchange) eventHeader() [][2]string {
	fields := make([][2]string, 0, len(e.Fields)+7)
	size := len(e.Host)
	for _, f := range e.Fields {
		size += len(f.Value)
	}
	var all strings.Builder // holds all values; one allocation
	all.Grow(size)
	text := func(p []byte) string {
		n := all.Len()
		all.Write(p)
		return all.String()[n:]
	}
	own := [2]string{"http", text(e.Host)}
	if e.Secure() {
		own[0] = "https"
	}
	var chain, elements []string
	o := origin{proto: own[0], host: own[1], prefix: mounted(e.named)}
	for _, f := range e.Fields {
		name, value := textproto.CanonicalMIMEHeaderKey(string(f.Name)), text(f.Value)
		switch {
		case name == "X-Request-Id", mimics(name):
		case name == "Authorization" && e.secret: // a function must not learn its callers' tokens
		case claimsOrigin(name) && !e.client.trusted:
		case name == forwardedFor:
			chain = append(chain, value)
		case name == forwarded:
			elements = append(elements, value)
		case !o.told(name, value, e.named):
			fields = append(fields, [2]string{name, value})
		}
	}
	node := cmp.Or(e.client.peer, "unknown")
	element := forwardedElement(node, own[1], own[0])
	if len(elements) > 0 {
		element = strings.Join(append(elements, element), ", ")
	}
	said := append(make([][2]string, 0, 6), [2]string{"X-Request-Id", e.id}, [2]string{forwardedProto, o.proto}, [2]string{forwardedHost, o.host},
		[2]string{forwardedMount, o.prefix}, [2]string{forwarded, element})
	if e.client.peer != "" {
		way := node
		if len(chain) > 0 {
			way = strings.Join(append(chain, node), ", ")
		}
		said = append(said, [2]string{forwardedFor, way})
	}
	return eventHeader(own[1], fields, said...)
}

// reads reports whether the method is GET or HEAD, and refuses any other.
func (e *exchange) reads() bool {
	if m := string(e.Method); m == http.MethodGet || m == http.MethodHead {
		return true
	}
	e.Set("Allow", "GET, HEAD")
	e.refuse(failure.MethodNotAllowed, "only GET and HEAD are answered here")
	return false
}

// failWith answers a request that err ended, by the catalogue of package api.
func (e *exchange) failWith(err error) {
	failed := errorOf(err)
	if failed.Code == failure.Internal {
		e.g.Log.Error("invoke", "function", e.function, "request", e.id, "error", err)
		failed.Message = "the function could not be run; the engine's log says why"
	}
	if wait := api.RetryAfter(err); wait > 0 && failed.Code != failure.Internal {
		e.Set("Retry-After", strconv.Itoa(wait))
	}
	e.answer(failed)
}

// refuse answers a request that the gateway itself refuses.
func (e *exchange) refuse(code failure.Code, message string) {
	e.failWith(failure.New(code, message, ""))
}

// answer sends an error.
func (e *exchange) answer(failed *api.Error) {
	e.code = string(failed.Code)
	if e.invocation != "" {
		e.Set("X-Fre-Id", e.invocation)
	}
	e.Set("Content-Type", "application/json")
	e.Set("X-Content-Type-Options", "nosniff")
	_ = e.Send(failed.Status, errorBody(failed)) // fails only with the connection
}

// The methods below count the sent bytes for the access log.

// Send answers with a body in memory.
func (e *exchange) Send(status int, body []byte) error {
	e.status = status
	err := e.Exchange.Send(status, body)
	if err == nil && !e.bodyless() {
		e.bytes = int64(len(body))
	}
	return err
}

// SendFile answers with a part of a file.
func (e *exchange) SendFile(status int, f *os.File, offset, length int64) error {
	e.status = status
	err := e.Exchange.SendFile(status, f, offset, length)
	if err == nil && !e.bodyless() {
		e.bytes = length
	}
	return err
}

// Begin starts an answer whose body follows by Write.
func (e *exchange) Begin(status int, length int64) error {
	e.status = status
	return e.Exchange.Begin(status, length)
}

// Write sends a part of the body.
func (e *exchange) Write(p []byte) (int, error) {
	n, err := e.Exchange.Write(p)
	e.bytes += int64(n)
	return n, err
}

// Switch changes the connection's protocol.
func (e *exchange) Switch(idle time.Duration) (*httpserver.Tunnel, error) {
	e.status = http.StatusSwitchingProtocols
	return e.Exchange.Switch(idle)
}

// Lend has another process send the rest of the body.
func (e *exchange) Lend(to func(socket syscall.RawConn) (int64, error)) (int64, error) {
	n, err := e.Exchange.Lend(to)
	e.bytes += n
	return n, err
}

// bodyless reports whether the answer has no body.
func (e *exchange) bodyless() bool {
	return string(e.Method) == http.MethodHead || e.status == http.StatusNoContent || e.status == http.StatusNotModified
}

// log writes the request to the access log.
func (e *exchange) log() {
	if e.g.AccessLog == nil {
		return
	}
	e.g.AccessLog.Add(accessLine{
		Time: e.begun, ID: e.id, Client: e.client.text, Method: string(e.Method), Path: string(e.Path), Status: e.status,
		Bytes: e.bytes, Micros: time.Since(e.begun).Microseconds(), Function: e.function, Invocation: e.invocation, Cold: e.cold, Error: e.code,
	})
}
