// Package httpserver is an HTTP server whose loops touch headers and leave bodies to
// the kernel. It knows nothing of functions.
//
// It reads HTTP/1.1 (RFC 9112) strictly: where two readers of a request could
// disagree on where it ends, it is refused (section 11.2, request smuggling), by
// name: bare LF or CR, white space before a colon, folded lines, more than one
// length, a length beside a coding, codings other than one chunked.
package httpserver
