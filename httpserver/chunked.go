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

// end reports whether b has the rest of the body, or an error in the rest.
func (c Chunks) end(b []byte) bool {
	for {
		used, _, err := c.Next(b)
		if err != nil || c.Done() {
			return true
		}
		if used == 0 {
			return false
		}
		b = b[used:]
	}
}

// Next parses b and consumes its first used bytes. The last len(data) of them are data of the
// body, at most one piece per call. used is 0 if b is too short to go on. Errors are
// *[RequestError].
func (c *Chunks) Next(b []byte) (used int, data []byte, err error) {
	for {
		var n int
		switch c.state {
		case chunkSize:
			n, err = c.sizeLine(b[used:])
		case chunkData:
			n := int(min(int64(len(b)-used), c.left))
			if c.left -= int64(n); c.left == 0 {
				c.state = chunkEnd
			}
			return used + n, b[used : used+n], nil
		case chunkEnd:
			n, err = c.dataEnd(b[used:])
		case chunkTrailer:
			n, err = c.trailerLine(b[used:])
		case chunkDone:
			return used, nil, nil
		}
		if err != nil || n == 0 {
			return used, nil, err
		}
		used += n
	}
}

// sizeLine, dataEnd and trailerLine consume the next n bytes of b, 0 if b is too short.
func (c *Chunks) sizeLine(b []byte) (n int, err error) {
	line, n, err := chunkLine(b)
	if err != nil || n == 0 {
		return 0, err
	}
	if c.left, err = parseChunkSize(line); err != nil {
		return 0, err
	}
	c.state = chunkData
	if c.left == 0 {
		c.state = chunkTrailer
	}
	return n, nil
}

func (c *Chunks) dataEnd(b []byte) (n int, err error) {
	if len(b) > 0 && b[0] != '\r' || len(b) > 1 && b[1] != '\n' {
		return 0, bad("a chunk is longer than announced")
	}
	if len(b) < 2 {
		return 0, nil
	}
	c.state = chunkSize
	return 2, nil
}

func (c *Chunks) trailerLine(b []byte) (n int, err error) {
	line, n, err := chunkLine(b)
	if err != nil || n == 0 {
		return 0, err
	}
	if c.trailer += n; c.trailer > maxTrailer {
		return 0, bad("more than %d bytes of trailer fields", maxTrailer)
	}
	if len(line) == 0 {
		c.state = chunkDone
		return n, nil
	}
	_, err = parseField(line)
	return n, err
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
		if err := checkExtensions(extensions); err != nil {
			return 0, err
		}
		size = bytes.TrimRight(size, " \t") // RFC 9112 section 7.1.1: BWS
	}
	if len(size) == 0 || len(size) > 15 {
		return 0, bad("invalid chunk size")
	}
	var n int64
	for _, c := range size {
		digit, ok := hexDigit(c)
		if !ok {
			return 0, bad("invalid chunk size")
		}
		n = n<<4 | int64(digit)
	}
	return n, nil
}

func checkExtensions(b []byte) error {
	for _, c := range b {
		if c < ' ' && c != '\t' || c >= 0x7f {
			return bad("byte 0x%02x in a chunk's extension", c)
		}
	}
	return nil
}

func hexDigit(c byte) (digit byte, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
