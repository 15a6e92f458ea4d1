package httpserver

import "bytes"

// maxChunkLine limits a chunk's size line, extensions included, in bytes.
const maxChunkLine = 256

// Chunks finds the data in a chunked body (RFC 9112 section 7.1). The zero Chunks is at the start
// of a body.
type Chunks struct {
	left    int64 // of the chunk's data
	state   chunkState
	trailer int // bytes of trailer fields so far
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkData
	chunkEnd // the line end after the data
	chunkTrailer
	chunkDone
)

// maxTrailer limits the trailer fields, which are discarded, in bytes.
const maxTrailer = 8 << 10

// Done reports whether the body has ended.
func (c *Chunks) Done() bool { return c.state == chunkDone }

// giveBack undoes the last n bytes of data: the caller passes them to Next again.
func (c *Chunks) giveBack(n int) {
	c.left += int64(n)
	c.state = chunkData
}

// Next parses b and consumes its first used bytes. The last len(data) of them are data of the
// body, at most one piece per call. used is 0 if b is too short to go on. Errors are
// *[RequestError].
func (c *Chunks) Next(b []byte) (used int, data []byte, err error) {
	for {
		switch c.state {
		case chunkSize:
			line, n, err := chunkLine(b[used:])
			if err != nil || n == 0 {
				return used, nil, err
			}
			if c.left, err = parseChunkSize(line); err != nil {
				return used, nil, err
			}
			used += n
			c.state = chunkData
			if c.left == 0 {
				c.state = chunkTrailer
			}
		case chunkData:
			n := min(int64(len(b)-used), c.left)
			data = b[used : used+int(n)]
			if c.left -= n; c.left == 0 {
				c.state = chunkEnd
			}
			return used + int(n), data, nil
		case chunkEnd:
			rest := b[used:]
			if len(rest) < 2 {
				if len(rest) == 1 && rest[0] != '\r' {
					return used, nil, bad("a chunk is longer than announced")
				}
				return used, nil, nil
			}
			if rest[0] != '\r' || rest[1] != '\n' {
				return used, nil, bad("a chunk is longer than announced")
			}
			used += 2
			c.state = chunkSize
		case chunkTrailer:
			line, n, err := chunkLine(b[used:])
			if err != nil || n == 0 {
				return used, nil, err
			}
			if c.trailer += n; c.trailer > maxTrailer {
				return used, nil, bad("more than %d bytes of trailer fields", maxTrailer)
			}
			used += n
			if len(line) == 0 {
				c.state = chunkDone
				return used, nil, nil
			}
			if _, err := parseField(line); err != nil {
				return used, nil, err
			}
		case chunkDone:
			return used, nil, nil
		}
	}
}

// chunkLine returns the first line of b without its end, and its length with the end. n is 0 if
// the line is not complete.
func chunkLine(b []byte) (line []byte, n int, err error) {
	i := bytes.IndexByte(b[:min(len(b), maxTrailer)], '\n')
	switch {
	case i < 0 && len(b) >= maxTrailer:
		return nil, 0, bad("a line of a chunked body is too long")
	case i < 0:
		return nil, 0, nil
	case i == 0 || b[i-1] != '\r':
		return nil, 0, bad("a line feed without a carriage return")
	}
	return b[:i-1], i + 1, nil
}

// parseChunkSize parses 1*HEXDIG and ignores extensions.
func parseChunkSize(line []byte) (int64, error) {
	if len(line) > maxChunkLine {
		return 0, bad("a chunk's size line is too long")
	}
	size, extensions, extended := bytes.Cut(line, []byte{';'})
	if extended {
		for _, c := range extensions {
			if c < ' ' && c != '\t' || c >= 0x7f {
				return 0, bad("byte 0x%02x in a chunk's extension", c)
			}
		}
		size = bytes.TrimRight(size, " \t") // RFC 9112 section 7.1.1: BWS
	}
	if len(size) == 0 || len(size) > 15 {
		return 0, bad("invalid chunk size")
	}
	var n int64
	for _, c := range size {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, bad("invalid chunk size")
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}
