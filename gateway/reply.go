package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
)

// reply is an answer on its way from the function to the client. The gateway may change it.
type reply struct {
	status int
	header [][2]string // canonical names; without the engine's own fields
	size   int64       // bytes of the body, -1 if unknown
	body   io.Reader
	bytes  []byte   // whole body, unless nil
	file   *os.File // unless nil, holds the body from offset on
	offset int64

	// If lend is not nil, the function may ask for the client's connection. body then refuses.
	// asking instead returns [engine.ErrSocketWanted] until lend is called.
	lend   func(socket syscall.RawConn) (int64, error)
	asking io.Reader
}

func newReply(resp *engine.Response) *reply {
	a := &reply{status: resp.Status, size: resp.Size, body: resp.Body, bytes: resp.Bytes, file: resp.File, offset: resp.Offset}
	if resp.Lend != nil {
		a.lend, a.asking, a.body = resp.Lend, resp.Body, declining{resp.Body, resp.Lend}
	}
	a.header = make([][2]string, 0, len(resp.Header)+4)
	for _, h := range resp.Header {
		k := textproto.CanonicalMIMEHeaderKey(h[0])
		if !hopByHop[k] && !ours[k] && !strings.HasPrefix(k, "X-Fre-") && httpserver.ValidField(k, h[1]) {
			a.header = append(a.header, [2]string{k, h[1]})
		}
	}
	return a
}

// declining is a body that refuses the function's request for the client's connection.
type declining struct {
	body io.Reader
	lend func(socket syscall.RawConn) (int64, error)
}

func (d declining) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	if errors.Is(err, engine.ErrSocketWanted) {
		_, err = d.lend(nil)
	}
	return n, err
}

// get returns the first field with the canonical name, "" if absent.
func (a *reply) get(name string) string {
	for _, h := range a.header {
		if h[0] == name {
			return h[1]
		}
	}
	return ""
}

// set replaces all fields with the name.
func (a *reply) set(name, value string) {
	a.remove(func(n string) bool { return n == name })
	a.header = append(a.header, [2]string{name, value})
}

func (a *reply) remove(which func(name string) bool) {
	a.header = slices.DeleteFunc(a.header, func(h [2]string) bool { return which(h[0]) })
}

// setFields sets the function's fields and the engine's own.
func (a *reply) setFields(f front, r *request, resp *engine.Response) {
	if !r.body.ended() { // the rest may arrive after the answer, or never
		f.CloseAfter()
	}
	for _, h := range a.header {
		if !r.cors || !strings.HasPrefix(h[0], "Access-Control-") {
			f.Set(h[0], h[1])
		}
	}
	f.Set("X-Fre-Id", resp.ID)
	f.Set("X-Fre-Instance", resp.Instance)
	if resp.Revision != "" {
		f.Set("X-Fre-Revision", resp.Revision)
	}
	if resp.Node != "" {
		f.Set("X-Fre-Node", resp.Node)
	}
	cold := "0"
	if resp.Cold {
		cold = "1"
	}
	f.Set("X-Fre-Cold", cold)
	f.Set("X-Fre-Start", string(resp.StartKind))
	f.Set("X-Fre-Start-Us", strconv.FormatInt(resp.Start.Microseconds(), 10))
}

// replace replaces status and body.
func (a *reply) replace(status int, body string) {
	a.status, a.file, a.bytes, a.body, a.size = status, nil, nil, strings.NewReader(body), int64(len(body))
}

// refuse replaces the body by an error of the gateway.
func (a *reply) refuse(code failure.Code, message string) {
	a.remove(func(name string) bool { // fields that describe the body or allow caching
		return strings.HasPrefix(name, "Content-") || name == "Etag" || name == "Last-Modified" || name == "Cache-Control" || name == "Expires"
	})
	if code == failure.RangeNotSatisfiable {
		a.set("Content-Range", fmt.Sprintf("bytes */%d", a.size))
	}
	a.set("Content-Type", "application/json")
	failed := api.ErrorOf(failure.New(code, message, ""))
	a.replace(failed.Status, string(errorBody(failed)))
}
