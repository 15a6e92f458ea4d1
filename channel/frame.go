package channel

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// kind is the fifth byte of a frame.
type kind uint8

const (
	kindReady    kind = 0x01
	kindFailed   kind = 0x02
	kindInvoke   kind = 0x03
	kindResponse kind = 0x04
	kindData     kind = 0x05
	kindError    kind = 0x06
	kindCancel   kind = 0x07
	kindWindow   kind = 0x08
	kindLog      kind = 0x09
	kindStop     kind = 0x0a
	kindParked   kind = 0x0b
	kindLoad     kind = 0x0c
	kindFork     kind = 0x0d
	kindForked   kind = 0x0e
	kindGo       kind = 0x0f
	kindFD       kind = 0x20
	kindFile     kind = 0x21
	kindPipe     kind = 0x22
	kindSocket   kind = 0x23
	kindCall     kind = 0x30
	kindCallFile kind = 0x31
)

const (
	headerSize = 16
	flagMore   = 1
)

// header is the start of every frame:
//
//	0      4      5       6      8              16
//	| len  | kind | flags | fds  | id            |
type header struct {
	len   int
	kind  kind
	flags uint8
	fds   int // descriptors sent along: FD, PIPE, SOCKET, CALLFILE; FORK, which this package never receives
	id    uint64
}

func (h header) more() bool { return h.flags&flagMore != 0 }

func (h header) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(h.len))
	b = append(b, byte(h.kind), h.flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.fds))
	return binary.LittleEndian.AppendUint64(b, h.id)
}

// frameReader reads frames. A payload is valid until the next call of next.
type frameReader struct {
	r       *bufio.Reader
	rights  *rightsReader // the source of r; nil if no descriptors are expected: the kernel drops them
	start   int64         // start and end of the last frame, in bytes of the channel
	end     int64
	payload *[]byte // from payloads, until the next call of next
}

// payloads are buffers for frames longer than a reader's buffer. An idle channel holds none.
var payloads = sync.Pool{New: func() any { return new([]byte) }}

func newFrameReader(r io.Reader) *frameReader {
	rights, _ := r.(*rightsReader)
	return &frameReader{r: bufio.NewReaderSize(r, 16<<10), rights: rights}
}

// file returns the regular file, or for PIPE the pipe, that came with the last frame. The frame
// announces a descriptor. The caller owns the file.
func (f *frameReader) file(k kind) (*os.File, error) {
	if f.rights == nil {
		return nil, fmt.Errorf("%w: a file where none is expected", ErrProtocol)
	}
	fd, ok := f.rights.take(f.start, f.end)
	if !ok {
		return nil, fmt.Errorf("%w: not the one file descriptor that was announced", ErrProtocol)
	}
	if k == kindPipe {
		defer func() { _ = unix.Close(fd) }()
		pipe, err := reopenPipe(fd)
		if err != nil && !errors.Is(err, ErrProtocol) {
			return nil, nil //nolint:nilnil // framePipe says so to the one event
		}
		return pipe, err
	}
	// Check before os.NewFile, which registers pollable files with the poller.
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%w: the answer's file is no regular one: mode 0%o", ErrProtocol, st.Mode)
	}
	return os.NewFile(uintptr(fd), "answer"), nil
}

// close closes descriptors that no frame has taken.
func (f *frameReader) close() {
	if f.rights != nil {
		f.rights.close()
	}
}

// next reads a frame. It returns io.EOF only between frames, io.ErrUnexpectedEOF inside a frame,
// and ErrProtocol for a header that neither side may send.
func (f *frameReader) next() (header, []byte, error) {
	if f.rights != nil {
		f.rights.drop(f.end)
	}
	if f.payload != nil {
		payloads.Put(f.payload)
		f.payload = nil
	}
	b, err := f.r.Peek(headerSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(b) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return header{}, nil, err
	}
	n := binary.LittleEndian.Uint32(b)
	h := header{len: int(n), kind: kind(b[4]), flags: b[5], id: binary.LittleEndian.Uint64(b[8:])}
	h.fds = int(binary.LittleEndian.Uint16(b[6:]))
	_, _ = f.r.Discard(headerSize) // cannot fail after Peek
	f.start, f.end = f.end, f.end+headerSize+int64(n)
	switch {
	case n > MaxPayload:
		return h, nil, fmt.Errorf("%w: frame of %d bytes", ErrProtocol, n)
	case (h.kind < kindReady || h.kind > kindLoad) && h.kind != kindFD && h.kind != kindFile && h.kind != kindPipe && h.kind != kindSocket &&
		h.kind != kindCall && h.kind != kindCallFile:
		return h, nil, fmt.Errorf("%w: frame kind 0x%02x", ErrProtocol, uint8(h.kind))
	case h.fds != 0 && (h.kind != kindFD && h.kind != kindPipe && h.kind != kindSocket && h.kind != kindCallFile || h.fds != 1):
		return h, nil, fmt.Errorf("%w: %d file descriptors announced in frame kind 0x%02x", ErrProtocol, h.fds, uint8(h.kind))
	case h.flags&^flagMore != 0,
		h.more() && h.kind != kindInvoke && h.kind != kindResponse && h.kind != kindData && h.kind != kindCall:
		return h, nil, fmt.Errorf("%w: flags 0x%02x in frame kind 0x%02x", ErrProtocol, h.flags, uint8(h.kind))
	}
	switch h.kind {
	case kindReady, kindFailed, kindStop, kindParked, kindLoad: // about the channel
		if h.id != 0 {
			return h, nil, fmt.Errorf("%w: frame kind 0x%02x for invocation %d", ErrProtocol, uint8(h.kind), h.id)
		}
	case kindInvoke, kindResponse, kindData, kindError, kindCancel, kindWindow, kindFD, kindFile, kindPipe, kindSocket:
		if h.id == 0 {
			return h, nil, fmt.Errorf("%w: frame kind 0x%02x without an invocation", ErrProtocol, uint8(h.kind))
		}
	case kindCall, kindCallFile:
		if h.id < FirstCall {
			return h, nil, fmt.Errorf("%w: frame kind 0x%02x with the number %d", ErrProtocol, uint8(h.kind), h.id)
		}
	case kindLog: // about the channel or an invocation
	}
	// A payload that is whole in the buffer needs no copy.
	if h.len <= f.r.Buffered() {
		p, _ := f.r.Peek(h.len)
		_, _ = f.r.Discard(h.len)
		return h, p, nil
	}
	f.payload = payloads.Get().(*[]byte)
	if cap(*f.payload) < h.len {
		*f.payload = make([]byte, max(h.len, chunk))
	}
	p := (*f.payload)[:h.len]
	if _, err := io.ReadFull(f.r, p); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return h, nil, err
	}
	return h, p, nil
}

// split splits the payload of INVOKE and RESPONSE: u32 n, n bytes of JSON, the body.
func split(p []byte) (meta, body []byte, err error) {
	if len(p) < 4 {
		return nil, nil, fmt.Errorf("%w: no metadata", ErrProtocol)
	}
	n := binary.LittleEndian.Uint32(p)
	if p = p[4:]; uint64(n) > uint64(len(p)) {
		return nil, nil, fmt.Errorf("%w: metadata of %d bytes in a payload of %d", ErrProtocol, n, len(p))
	}
	return p[:n], p[n:], nil
}

func unmarshal(p []byte, v any) error {
	if len(p) > MaxMeta {
		return fmt.Errorf("%w: %d bytes of metadata", ErrProtocol, len(p))
	}
	if err := json.Unmarshal(p, v); err != nil {
		return fmt.Errorf("%w: metadata: %w", ErrProtocol, err)
	}
	return nil
}

func window(p []byte) (int, error) {
	if len(p) != 4 {
		return 0, fmt.Errorf("%w: window of %d bytes", ErrProtocol, len(p))
	}
	return int(binary.LittleEndian.Uint32(p)), nil
}

// responseMeta is the JSON of RESPONSE.
type responseMeta struct {
	status  int
	headers [][2]string
}

// check refuses a status or header fields that an HTTP response cannot have. upgrade allows
// status 101.
func (m *responseMeta) check(upgrade bool) error {
	if (m.status < 200 || m.status > 599) && (!upgrade || m.status != 101) {
		return fmt.Errorf("%w: status %d", ErrProtocol, m.status)
	}
	if len(m.headers) > MaxHeaders {
		return fmt.Errorf("%w: %d headers", ErrProtocol, len(m.headers))
	}
	for _, h := range m.headers {
		if !token(h[0]) || !fieldValue(h[1]) {
			return badHeader(h[:])
		}
	}
	return nil
}

func badHeader(h []string) error { return fmt.Errorf("%w: header %q", ErrProtocol, h) }

// token matches a token of RFC 9110 section 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '!' || c == '#' || c == '$' || c == '%' || c == '&' || c == '\'' || c == '*' || c == '+' ||
			c == '-' || c == '.' || c == '^' || c == '_' || c == '`' || c == '|' || c == '~':
		default:
			return false
		}
	}
	return s != ""
}

// visible refuses bytes that could end a request's target: RFC 9112 section 3.
func visible(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// fieldValue refuses bytes that could end a header field: RFC 9110 section 5.5.
func fieldValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
