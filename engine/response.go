package engine

import (
	"io"
	"os"
	"syscall"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/sandbox"
)

// Request is one event. Invoke reads Body. While an answer is streamed, the engine may read on
// until Response.Body is closed. If Body is an io.Closer, the engine closes Body at the end of
// the event, also after a time-out: a Read under way must then return. Close may be called
// several times, by several goroutines.
//
// With Upgrade, a function with one of the protocols answers 101. The tunnel has no time limit of
// the function, and ends with either direction or with the function. With Socket, the caller can
// lend the client's connection (Response.Lend) to functions trusted with connections.
type Request = channel.Request

// Header fields that Lambda's API adds for a qualified name, for the bootstraps of the contract
// lambda: the qualifier in the request, and the version behind the qualifier. As part of the
// header both are stored and forwarded with the event. Gateways remove the fields from clients'
// requests.
const (
	QualifierField = "X-Fre-Lambda-Qualifier"
	VersionField   = "X-Fre-Lambda-Version"
)

// ErrSocketWanted says that Response.Body continues only after a call of Response.Lend.
var ErrSocketWanted = channel.ErrSocketWanted

// Response is a function's answer. The caller must close Body: this ends the event and frees the
// instance. If Body ends with an error, the function failed during the answer.
type Response struct {
	ID       string // of the invocation, also in the logs
	Instance string // id of the sandbox
	Revision string // revision that answered; "" if all events go to one revision and the event named none
	Node     string // node that answered; "" for this node
	Status   int
	Header   [][2]string
	Size     int64 // bytes of Body, -1 while the body is incomplete
	Body     io.ReadCloser
	// Bytes, if not nil, holds the whole of a short body. The content is immutable. A reader of
	// Bytes does not read Body.
	Bytes []byte
	// File, if not nil, holds the body: Size bytes from Offset on, immutable. Closing Body
	// closes File. A reader of File does not read Body.
	File   *os.File
	Offset int64

	// Lend is nil unless the function may get the client's connection. After a Read of Body has
	// returned ErrSocketWanted, Lend passes the socket to the function and waits until the
	// function has written the rest of the body there: n bytes in chunks (RFC 9112 section 7.1).
	// Body is at its end then. With a nil conn the function gets no socket and Body continues.
	Lend func(conn syscall.RawConn) (n int64, err error)

	Cold  bool          // this event started a sandbox, or gave a parked interpreter its function
	Start time.Duration // from the request to a ready instance

	StartKind sandbox.StartKind // origin of the instance
}

// Kinds of a start, beside those of package sandbox.
const (
	StartWarm        sandbox.StartKind = "warm"        // no start: the instance was ready
	StartInterpreter sandbox.StartKind = "interpreter" // from a parked interpreter
)
