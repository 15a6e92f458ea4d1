package lambda

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
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
	"github.com/fre-engine/fre/engine/build"
)

// route is one route of the API.
type route struct {
	action, method, path string
	scope                access.Scope
	max                  int64
	handle               func(*server, *call) error
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
