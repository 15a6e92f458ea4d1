// Package httpserver is an HTTP server whose loops touch headers and leave bodies to
// the kernel. It knows nothing of functions.
//
// It reads HTTP/1.1 (RFC 9112) strictly: where two readers of a request could
// disagree on where it ends, it is refused (section 11.2, request smuggling), by
// name: bare LF or CR, white space before a colon, folded lines, more than one
// length, a length beside a coding, codings other than one chunked.
//
// HTTP/2 (RFC 9113) is spoken with clients that begin with its preface, and with those
// that choose it over TLS. A handler sees the same [Exchange]. Each stream has a
// goroutine, which writes what it sends itself, together with what others have (see
// writer.go); a file's bytes pass by here once, through buffers that are used again. What
// a client asks for without bringing work is counted, and what is kept for it is bounded.
package httpserver
