// Package lambda serves AWS Lambda's API (docs.aws.amazon.com/lambda/latest/api) on top of
// the engine: Invoke, and the management of functions. boto3 and other SDKs work unmodified with
// another endpoint_url (docs/lambda.md). Like package server, the package only translates
// between the API and the engine.
//
// An account is a tenant. A published version is a revision, kept by an alias of the engine (see
// version.go). AWS settings without an equivalent in FRE are a label of the image (see
// function.go). Requests are signed with a token's access key (see sigv4.go).
package lambda

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/internal/wording"
	control "github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/intake"
	"github.com/fre-engine/fre/store"
)

// Events queues asynchronous events.
type Events interface {
	Publish(ctx context.Context, function string, r *engine.Request) (id string, err error)
}

// Config configures the API. All fields but Unsigned and Now are required.
type Config struct {
	Engine  *engine.Engine
	Invoker gateway.Invoker // receives events, and counts events against tenants' quotas
	Guard   *gateway.Guard  // tokens, event quotas of tenants, request rates of addresses
	Events  Events
	Rootfs  func(store.Digest) string      // returns the root directory of an image
	Scratch func() (dir string, err error) // creates a directory; the API removes the directory
	Log     *slog.Logger

	Region string // AWS region that requests must be signed for

	// Unsigned is the tenant of unsigned requests. If "", unsigned requests are refused.
	Unsigned string

	Now func() time.Time // default time.Now
}

// Limits of request bodies, in bytes
// (docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html).
const (
	maxInvoke  = 6 << 20
	maxAsync   = 1 << 20
	maxRequest = 1 << 20    // requests without code
	maxCode    = 70_167_211 // requests with code, in base64
)

type server struct {
	Config
	locks     locks                      // serializes the changes of a function
	receiving intake.Slots[netip.Prefix] // uploads of bodies that may hold code
	codes     chan struct{}              // held by the only request with code in memory
}

// route is one route of the API.
type route struct {
	action, method, path string
	scope                access.Scope
	max                  int64
	handle               func(*server, *call) error
}

const functions = "/2015-03-31/functions"

var routes = []route{
	{"Invoke", "POST", functions + "/{function}/invocations", access.Invoke, maxInvoke, (*server).invoke},
	{"InvokeWithResponseStream", "POST", "/2021-11-15/functions/{function}/response-streaming-invocations", access.Invoke, maxInvoke, (*server).invokeStream},

	{"CreateFunction", "POST", functions, access.Deploy, maxCode, (*server).createFunction},
	{"UpdateFunctionCode", "PUT", functions + "/{function}/code", access.Deploy, maxCode, (*server).updateCode},
	{"UpdateFunctionConfiguration", "PUT", functions + "/{function}/configuration", access.Deploy, maxRequest, (*server).updateConfiguration},
	{"GetFunction", "GET", functions + "/{function}", access.Read, maxRequest, (*server).getFunction},
	{"GetFunctionConfiguration", "GET", functions + "/{function}/configuration", access.Read, maxRequest, (*server).getConfiguration},
	{"ListFunctions", "GET", functions, access.Read, maxRequest, (*server).listFunctions},
	{"DeleteFunction", "DELETE", functions + "/{function}", access.Deploy, maxRequest, (*server).deleteFunction},

	{"PublishVersion", "POST", functions + "/{function}/versions", access.Deploy, maxRequest, (*server).publishVersion},
	{"ListVersionsByFunction", "GET", functions + "/{function}/versions", access.Read, maxRequest, (*server).listVersions},
	{"CreateAlias", "POST", functions + "/{function}/aliases", access.Deploy, maxRequest, (*server).createAlias},
	{"ListAliases", "GET", functions + "/{function}/aliases", access.Read, maxRequest, (*server).listAliases},
	{"GetAlias", "GET", functions + "/{function}/aliases/{alias}", access.Read, maxRequest, (*server).getAlias},
	{"UpdateAlias", "PUT", functions + "/{function}/aliases/{alias}", access.Deploy, maxRequest, (*server).updateAlias},
	{"DeleteAlias", "DELETE", functions + "/{function}/aliases/{alias}", access.Deploy, maxRequest, (*server).deleteAlias},

	{"PutFunctionConcurrency", "PUT", "/2017-10-31/functions/{function}/concurrency", access.Deploy, maxRequest, (*server).putConcurrency},
	{"GetFunctionConcurrency", "GET", "/2019-09-30/functions/{function}/concurrency", access.Read, maxRequest, (*server).getConcurrency},
	{"DeleteFunctionConcurrency", "DELETE", "/2017-10-31/functions/{function}/concurrency", access.Deploy, maxRequest, (*server).deleteConcurrency},

	{"GetAccountSettings", "GET", "/2016-08-19/account-settings", access.Read, maxRequest, (*server).accountSettings},
}

// New returns the API's handler.
func New(cfg Config) http.Handler {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &server{Config: cfg, receiving: intake.Slots[netip.Prefix]{All: maxReceiving, Of: maxReceivingOf}, codes: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) { s.serve(rt, w, r) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.serve(route{action: "unsupported", max: maxRequest, handle: (*server).unsupported}, w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.Path; len(p) > 1 && strings.HasSuffix(p, "/") { // boto3 requests lists with a trailing slash
			c := *r.URL
			c.Path, c.RawPath = strings.TrimSuffix(p, "/"), strings.TrimSuffix(c.RawPath, "/")
			r2 := *r // keep RequestURI, because the signature covers RequestURI
			r2.URL = &c
			r = &r2
		}
		mux.ServeHTTP(w, r)
	})
}

// call is one request in progress. id and tenant are set after authentication.
type call struct {
	w        http.ResponseWriter
	r        *http.Request
	id       access.Identity
	client   netip.Addr
	tenant   string
	body     []byte
	bodyFile string // file of a body that may hold code, until load; "" for none
	// release frees the slot or the memory of a body that may hold code, for the next request.
	release func()
	on      string // function's name, for the audit log
	status  int    // status of the answer; 0 before the answer
}

func (s *server) serve(rt route, w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r, client: access.ClientOf(r), release: func() {}}
	defer func() { c.release() }()
	w.Header().Set("X-Amzn-Requestid", requestID())
	if r.ContentLength != 0 { // net/http drains the body before any answer, even for an unauthenticated client
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience)) // fails only with the connection
	}
	err := s.admit(rt, c)
	if err == nil {
		err = rt.handle(s, c)
		if rt.scope == access.Deploy {
			s.audit(rt, c, err)
		}
	}
	if err != nil {
		s.fail(rt, c, err)
	}
}

// admit authenticates the sender, reads the body and checks the sender's rights.
func (s *server) admit(rt route, c *call) error {
	if wait := s.Guard.Clients.Take(c.client); wait > 0 {
		return &access.SlowDownError{What: "requests from the client's address", After: wait}
	}
	signed, err := s.signature(c)
	if err != nil {
		return err
	}
	hash, err := s.read(rt, c)
	if err != nil {
		return err
	}
	if c.id, err = s.identify(c, signed, hash); err != nil {
		return err
	}
	c.tenant = c.id.Tenant
	if rt.scope == "" {
		return nil
	}
	if err := c.id.Need(rt.scope); err != nil {
		s.Guard.Access.Record(access.Entry{
			Who: c.id.Who, Tenant: c.tenant, Client: c.client, Action: "lambda " + rt.action, On: c.r.PathValue("function"), Result: access.Refused, Reason: err.Error(),
		})
		return err
	}
	c.r = c.r.WithContext(s.Engine.ForTenant(c.r.Context()))
	return s.load(c)
}

// signature returns the signature of a request, with a known key, or nil for a permitted unsigned
// request.
func (s *server) signature(c *call) (*signature, error) {
	if len(c.r.Header.Values("Authorization")) == 0 && s.Unsigned != "" {
		if !byProgram(c.r) {
			return nil, refuse(http.StatusForbidden, "AccessDeniedException", "unsigned requests are only for programs on the engine's host: the request came from a web page, or was for a different host")
		}
		return nil, nil
	}
	signed, err := parseSignature(c.r, s.Region, s.Now())
	if err != nil {
		return nil, err
	}
	return signed, s.Guard.Access.KnownAccessKey(signed.key, c.client)
}

// identify returns the sender of a request whose body has the hash. signed is nil for an unsigned
// request.
func (s *server) identify(c *call, signed *signature, hash [sha256.Size]byte) (access.Identity, error) {
	if signed == nil {
		return access.Identity{Who: "unsigned", Tenant: s.Unsigned, Scopes: []access.Scope{access.Deploy, access.Invoke}}, nil
	}
	text, err := signed.text(c.r, hash)
	if err != nil {
		return access.Identity{}, err
	}
	return s.Guard.Access.AuthenticateSigned(signed.key, c.client, func(secret []byte) bool { return signed.verify(secret, text) })
}

// byProgram reports whether an unsigned request comes from a program. Web pages are excluded,
// because pages of any origin can make a browser send requests to loopback.
func byProgram(r *http.Request) bool {
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return false
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// Limits of request bodies: the time of a body, the longer time of a body that may hold code,
// and the number of the latter, in total and per address. A body that may hold code goes to
// disk, because the signature can be checked only after the whole body has arrived.
const (
	patience       = time.Minute
	codePatience   = 2 * time.Minute
	maxReceiving   = 32
	maxReceivingOf = 8
)

// read reads the request's body and returns the body's hash. A body that may hold code goes to a
// file.
func (s *server) read(rt route, c *call) (hash [sha256.Size]byte, err error) {
	var to io.Writer
	var memory bytes.Buffer
	room := "" // directory to write to
	most := patience
	if to = &memory; rt.max == maxCode {
		f, err := s.createBodyFile(c)
		if err != nil {
			return hash, err
		}
		defer func() { _ = f.Close() }() // f is only written here; load reads the file again
		to, most = f, codePatience
		room = filepath.Dir(f.Name())
	}
	conn := http.NewResponseController(c.w)
	sum := sha256.New()
	if err = conn.SetReadDeadline(time.Now().Add(most)); err == nil {
		body := http.MaxBytesReader(c.w, c.r.Body, rt.max)
		receive := func(ctx context.Context) error {
			_, err := io.Copy(build.WhileRoom(ctx, io.MultiWriter(to, sum)), body)
			return err
		}
		if room == "" {
			err = receive(c.r.Context())
		} else {
			err = build.WritingTo(c.r.Context(), room, receive)
		}
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err == nil {
		c.body = memory.Bytes()
		return [sha256.Size]byte(sum.Sum(nil)), nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return hash, refuse(http.StatusRequestEntityTooLarge, "RequestTooLargeException", "Request must be smaller than %d bytes for the %s operation", rt.max, rt.action)
	}
	if errors.Is(err, unix.ENOSPC) {
		return hash, err
	}
	return hash, refuse(http.StatusBadRequest, "InvalidRequestContentException", "Could not read request body: %v", err)
}

// createBodyFile creates the file for a body that may hold code. The file exists until c.release.
func (s *server) createBodyFile(c *call) (*os.File, error) {
	leave, ok := s.receiving.Enter(access.Block(c.client))
	if !ok {
		return nil, &awsError{status: http.StatusTooManyRequests, kind: "TooManyRequestsException", message: "too many uploads of code in progress", after: 1}
	}
	dir, remove, err := s.scratch(c)
	if err != nil {
		leave()
		return nil, err
	}
	c.release = sync.OnceFunc(func() {
		remove()
		leave()
	})
	c.bodyFile = filepath.Join(dir, "body")
	return os.OpenFile(c.bodyFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// load reads the file of createBodyFile into memory. load waits until no other request has code in
// memory.
func (s *server) load(c *call) error {
	if c.bodyFile == "" {
		return nil
	}
	select {
	case s.codes <- struct{}{}:
	case <-c.r.Context().Done():
		return context.Cause(c.r.Context())
	}
	body, err := os.ReadFile(c.bodyFile)
	c.release()
	c.body, c.bodyFile = body, ""
	c.release = sync.OnceFunc(func() {
		c.body = nil
		<-s.codes
	})
	return err
}

func (s *server) audit(rt route, c *call, err error) {
	e := access.Entry{Who: c.id.Who, Tenant: c.tenant, Client: c.client, Action: "lambda " + rt.action, On: c.on, Result: access.Done, Status: c.status}
	if err != nil {
		f := errorOf(err)
		e.Result, e.Status, e.Reason = access.Failed, f.status, f.message
	}
	s.Guard.Access.Record(e)
}

func (s *server) unsupported(c *call) error {
	return refuse(http.StatusBadRequest, "UnsupportedOperationException", "FRE does not implement %s %s of Lambda's API: see docs/lambda.md", c.r.Method, c.r.URL.Path)
}

// reply sends v as JSON.
func (c *call) reply(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.send(status, body)
	return nil
}

func (c *call) send(status int, body []byte) {
	c.status = status
	c.w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = c.w.Write(body) // an error means that the connection ends
	}
}

// decode parses the body and rejects unknown fields, so no setting is silently ignored. Harmless
// fields without a meaning in FRE are explicit fields of the request types.
func (c *call) decode(v any) error {
	if len(c.body) == 0 {
		c.body = []byte("{}")
	}
	d := json.NewDecoder(bytes.NewReader(c.body))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && d.More() {
		err = errors.New("several JSON values")
	}
	if err == nil {
		return nil
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return refuse(http.StatusBadRequest, "InvalidParameterValueException", "%s is not supported: see docs/lambda.md", field)
	}
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return refuse(http.StatusBadRequest, "InvalidParameterValueException", "%s", wording.JSON(err))
	}
	return refuse(http.StatusBadRequest, "InvalidRequestContentException", "Could not parse request body into json: %v", err)
}

// awsError is an error in AWS's format.
type awsError struct {
	status  int
	kind    string
	message string
	after   int // seconds, value of Retry-After; 0: no header
}

func (f *awsError) Error() string { return f.message }

func refuse(status int, kind, format string, args ...any) error {
	return &awsError{status: status, kind: kind, message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return refuse(http.StatusBadRequest, "InvalidParameterValueException", format, args...)
}

// errorOf translates the code of err to Lambda's error. For a caller's mistake without an
// equivalent in Lambda's API the kind is InvalidParameterValueException, which SDKs do not retry.
func errorOf(err error) *awsError {
	if own := (*awsError)(nil); errors.As(err, &own) {
		return own
	}
	e := control.ErrorOf(err)
	f := &awsError{status: e.Status, kind: "ServiceException", message: e.Message, after: api.RetryAfter(err)}
	switch e.Code { // the codes for which Lambda has a kind or a status of its own
	case failure.BadSignature:
		f.status, f.kind = http.StatusForbidden, "InvalidSignatureException"
		f.message = "The request signature we calculated does not match the signature you provided. Check your secret access key and signing method."
	case failure.Unauthorized:
		f.status, f.kind = http.StatusForbidden, "ExpiredTokenException"
		if !errors.Is(err, access.ErrExpired) {
			f.kind, f.message = "UnrecognizedClientException", "The security token included in the request is invalid: create an access key with fre token create --access-key"
		}
	case failure.Forbidden:
		f.kind = "AccessDeniedException"
	case failure.NotFound:
		f.kind = "ResourceNotFoundException"
	case failure.NameTaken, failure.InUse, failure.Conflict, failure.ImageGone:
		f.status, f.kind = http.StatusConflict, "ResourceConflictException"
	case failure.BodyTooLarge, failure.HeaderTooLarge:
		f.status, f.kind = http.StatusRequestEntityTooLarge, "RequestTooLargeException"
	case failure.Quota, failure.SlowDown, failure.QueueFull, failure.Overloaded, failure.EngineOverloaded, failure.Degraded:
		f.status, f.kind = http.StatusTooManyRequests, "TooManyRequestsException"
	case failure.Template, failure.Package, failure.NotFunction:
		f.status, f.kind = http.StatusBadRequest, "InvalidParameterValueException"
	case failure.Cancelled:
		f.kind = "RequestAbortedException" // only for logs
	case failure.EventsUnavailable, failure.EventsStorage, failure.Stopping, failure.TokenUnchecked:
	default:
		if e.Status < http.StatusInternalServerError {
			f.status, f.kind = http.StatusBadRequest, "InvalidParameterValueException"
		}
		if e.Next != "" {
			f.message += "; " + e.Next
		}
	}
	return f
}

// fail sends an error in the format of SDKs: restJson1's x-amzn-ErrorType, and the message under
// two names, because AWS's model uses message in some errors and Message in others.
func (s *server) fail(rt route, c *call, err error) {
	f := errorOf(err)
	message := f.message
	if f.status == http.StatusInternalServerError { // hide internal errors from the client
		s.Log.ErrorContext(c.r.Context(), "lambda request failed", "action", rt.action, "function", c.on, "error", err)
		message = "the request failed; the engine's log says why"
	}
	if f.after > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(f.after))
	}
	c.w.Header().Set("X-Amzn-Errortype", f.kind)
	kind := "User"
	if f.status >= 500 {
		kind = "Service"
	}
	_ = c.reply(f.status, map[string]string{"Type": kind, "message": message, "Message": message}) // strings always encode
}
