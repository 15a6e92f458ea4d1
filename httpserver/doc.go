// Package httpserver is an HTTP server that handles headers itself and leaves bodies to the
// kernel. It knows nothing of functions.
//
// It parses HTTP/1.1 (RFC 9112) strictly. It refuses every request whose end two parsers could
// see differently (section 11.2, request smuggling): bare LF or CR, white space before a colon,
// folded lines, more than one length, a length beside a transfer coding, any coding other than a
// single chunked.
//
// It speaks HTTP/2 (RFC 9113) with clients that begin with its preface or choose it over TLS. A
// handler sees the same [Exchange]. Each stream has a goroutine, which writes its own frames
// together with waiting frames of other streams (see writer.go). File bytes are copied once,
// through reused buffers. Frames that cause work without bringing any are counted, and the state
// kept for a client is bounded.
package httpserver
