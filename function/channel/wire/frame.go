package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// Kind is the fifth byte of a frame.
type Kind uint8

// Kinds of frames: docs/protocol.md.
const (
	KindReady    Kind = 0x01
	KindFailed   Kind = 0x02
	KindInvoke   Kind = 0x03
	KindResponse Kind = 0x04
	KindData     Kind = 0x05
	KindError    Kind = 0x06
	KindCancel   Kind = 0x07
	KindWindow   Kind = 0x08
	KindLog      Kind = 0x09
	KindStop     Kind = 0x0a
	KindParked   Kind = 0x0b
	KindLoad     Kind = 0x0c
	KindFork     Kind = 0x0d
	KindForked   Kind = 0x0e
	KindGo       Kind = 0x0f
	KindFD       Kind = 0x20
	KindFile     Kind = 0x21
	KindPipe     Kind = 0x22
	KindSocket   Kind = 0x23
	KindCall     Kind = 0x30
	KindCallFile Kind = 0x31
)

// rules say what the header of a kind may hold. A kind without rules never reaches a Reader.
type rules uint8

const (
	ofChannel    rules = 1 << iota // the id is 0
	ofInvocation                   // the id is not 0
	ofCall                         // the id is at least FirstCall
	ofAny                          // any id
	mayContinue                    // FlagMore
	mayCarry                       // one descriptor
)

var kinds = [...]rules{
	KindReady:    ofChannel,
	KindFailed:   ofChannel,
	KindInvoke:   ofInvocation | mayContinue,
	KindResponse: ofInvocation | mayContinue,
	KindData:     ofInvocation | mayContinue,
	KindError:    ofInvocation,
	KindCancel:   ofInvocation,
	KindWindow:   ofInvocation,
	KindLog:      ofAny,
	KindStop:     ofChannel,
	KindParked:   ofChannel,
	KindLoad:     ofChannel,
	KindFD:       ofInvocation | mayCarry,
	KindFile:     ofInvocation,
	KindPipe:     ofInvocation | mayCarry,
	KindSocket:   ofInvocation | mayCarry,
	KindCall:     ofCall | mayContinue,
	KindCallFile: ofCall | mayCarry,
}

// HeaderSize is the size of a Header in bytes.
const HeaderSize = 16

// FlagMore means that more of the body follows in a later frame.
const FlagMore = 1

// Header is the start of every frame:
//
//	0      4      5       6      8              16
//	| len  | kind | flags | fds  | id            |
type Header struct {
	Len   int
	Kind  Kind
	Flags uint8
	FDs   int // descriptors sent along: FD, PIPE, SOCKET, CALLFILE; FORK, which this package never receives
	ID    uint64
}

// More reports whether FlagMore is set.
func (h Header) More() bool { return h.Flags&FlagMore != 0 }

// parseHeader decodes the HeaderSize bytes of b.
func parseHeader(b []byte) Header {
	return Header{
		Len: int(binary.LittleEndian.Uint32(b)), Kind: Kind(b[4]), Flags: b[5],
		FDs: int(binary.LittleEndian.Uint16(b[6:])), ID: binary.LittleEndian.Uint64(b[8:]),
	}
}

// check returns ErrProtocol for a header that neither side may send.
func (h Header) check() error {
	var r rules
	if int(h.Kind) < len(kinds) {
		r = kinds[h.Kind]
	}
	switch {
	case h.Len > MaxPayload:
		return fmt.Errorf("%w: frame of %d bytes", ErrProtocol, h.Len)
	case r == 0:
		return fmt.Errorf("%w: frame kind 0x%02x", ErrProtocol, uint8(h.Kind))
	case h.FDs > 1, h.FDs == 1 && r&mayCarry == 0:
		return fmt.Errorf("%w: %d file descriptors announced in frame kind 0x%02x", ErrProtocol, h.FDs, uint8(h.Kind))
	case h.Flags&^FlagMore != 0, h.More() && r&mayContinue == 0:
		return fmt.Errorf("%w: flags 0x%02x in frame kind 0x%02x", ErrProtocol, h.Flags, uint8(h.Kind))
	}
	return h.checkID(r)
}

func (h Header) checkID(r rules) error {
	switch {
	case r&ofChannel != 0 && h.ID != 0:
		return fmt.Errorf("%w: frame kind 0x%02x for invocation %d", ErrProtocol, uint8(h.Kind), h.ID)
	case r&ofInvocation != 0 && h.ID == 0:
		return fmt.Errorf("%w: frame kind 0x%02x without an invocation", ErrProtocol, uint8(h.Kind))
	case r&ofCall != 0 && h.ID < FirstCall:
		return fmt.Errorf("%w: frame kind 0x%02x with the number %d", ErrProtocol, uint8(h.Kind), h.ID)
	}
	return nil
}

// Append appends the encoded header to b.
func (h Header) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Len))
	b = append(b, byte(h.Kind), h.Flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.FDs))
	return binary.LittleEndian.AppendUint64(b, h.ID)
}

// Reader reads frames. A payload is valid until the next call of Next.
type Reader struct {
	r       *bufio.Reader
	rights  *rightsReader // the source of r; nil if no descriptors are expected: the kernel drops them
	start   int64         // start and end of the last frame, in bytes of the channel
	end     int64
	payload *[]byte // from payloads, until the next call of Next
}

// payloads are buffers for frames longer than a reader's buffer. An idle channel holds none.
var payloads = sync.Pool{New: func() any { return new([]byte) }}

// NewReader returns a Reader of the channel conn. It also takes the descriptors that come with
// frames.
func NewReader(conn *net.UnixConn) (*Reader, error) {
	rights, err := newRightsReader(conn)
	if err != nil {
		return nil, err
	}
	r := newReader(rights)
	r.rights = rights
	return r, nil
}

func newReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 16<<10)}
}

// Take returns the descriptor that came with the last frame, which announces one. The caller owns
// the descriptor. ok is false if the frame came with none, or with several.
func (f *Reader) Take() (fd int, ok bool) {
	if f.rights == nil {
		return -1, false
	}
	return f.rights.take(f.start, f.end)
}

// Close closes descriptors that no frame has taken.
func (f *Reader) Close() {
	if f.rights != nil {
		f.rights.close()
	}
}

// Next reads a frame. It returns io.EOF only between frames, io.ErrUnexpectedEOF inside a frame,
// and ErrProtocol for a header that neither side may send.
func (f *Reader) Next() (Header, []byte, error) {
	if f.rights != nil {
		f.rights.drop(f.end)
	}
	if f.payload != nil {
		payloads.Put(f.payload)
		f.payload = nil
	}
	b, err := f.r.Peek(HeaderSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(b) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return Header{}, nil, err
	}
	h := parseHeader(b)
	_, _ = f.r.Discard(HeaderSize) // cannot fail after Peek
	f.start, f.end = f.end, f.end+HeaderSize+int64(h.Len)
	if err := h.check(); err != nil {
		return h, nil, err
	}
	p, err := f.read(h.Len)
	return h, p, err
}

// read reads a payload.
func (f *Reader) read(n int) ([]byte, error) {
	// A payload that is whole in the buffer needs no copy.
	if n <= f.r.Buffered() {
		p, _ := f.r.Peek(n)
		_, _ = f.r.Discard(n)
		return p, nil
	}
	f.payload = payloads.Get().(*[]byte)
	if cap(*f.payload) < n {
		*f.payload = make([]byte, max(n, Chunk))
	}
	p := (*f.payload)[:n]
	if _, err := io.ReadFull(f.r, p); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return p, nil
}

// Split splits the payload of INVOKE and RESPONSE: u32 n, n bytes of JSON, the body.
func Split(p []byte) (meta, body []byte, err error) {
	if len(p) < 4 {
		return nil, nil, fmt.Errorf("%w: no metadata", ErrProtocol)
	}
	n := binary.LittleEndian.Uint32(p)
	if p = p[4:]; uint64(n) > uint64(len(p)) {
		return nil, nil, fmt.Errorf("%w: metadata of %d bytes in a payload of %d", ErrProtocol, n, len(p))
	}
	return p[:n], p[n:], nil
}

// Unmarshal parses metadata as JSON. It returns ErrProtocol for other text and beyond MaxMeta.
func Unmarshal(p []byte, v any) error {
	if len(p) > MaxMeta {
		return fmt.Errorf("%w: %d bytes of metadata", ErrProtocol, len(p))
	}
	if err := json.Unmarshal(p, v); err != nil {
		return fmt.Errorf("%w: metadata: %w", ErrProtocol, err)
	}
	return nil
}

// ResponseMeta is the JSON of RESPONSE.
type ResponseMeta struct {
	Status  int
	Headers [][2]string
}

// Check refuses a status or header fields that an HTTP response cannot have. upgrade allows
// Status 101.
func (m *ResponseMeta) Check(upgrade bool) error {
	if (m.Status < 200 || m.Status > 599) && (!upgrade || m.Status != 101) {
		return fmt.Errorf("%w: status %d", ErrProtocol, m.Status)
	}
	if len(m.Headers) > MaxHeaders {
		return fmt.Errorf("%w: %d headers", ErrProtocol, len(m.Headers))
	}
	for _, h := range m.Headers {
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
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

var tokenBytes = func() (token [256]bool) {
	for c := range 256 {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		token[c] = letter || strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0
	}
	return token
}()

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
