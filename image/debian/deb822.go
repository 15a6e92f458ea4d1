package debian

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	maxLine      = 4 << 20 // one line of a control file
	maxParagraph = 16 << 20
)

// paragraph is a deb822 stanza: field name in lower case → value. Continuation lines are joined by
// "\n" with their first blank removed (" ." is an empty line).
type paragraph map[string]string

// readParagraphs calls f for each paragraph of r; see deb822(5). want, when not nil, names the
// fields (lower case) to keep: it saves memory for a large index.
func readParagraphs(r io.Reader, want map[string]bool, f func(paragraph) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), maxLine)
	read := paragraphReader{want: want, f: f, p: paragraph{}}
	line := 0
	for sc.Scan() {
		line++
		b := bytes.TrimRight(sc.Bytes(), " \t\r")
		if len(b) == 0 {
			if err := read.flush(); err != nil {
				return err
			}
			continue
		}
		if b[0] == '#' {
			continue
		}
		if err := read.line(b); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err := sc.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("line %d: longer than %d bytes", line+1, maxLine)
		}
		return err
	}
	return read.flush()
}

// paragraphReader collects the lines of a paragraph.
type paragraphReader struct {
	want map[string]bool
	f    func(paragraph) error

	p    paragraph
	seen bool   // a field of the paragraph has come
	key  string // the last field; "" if unwanted
	size int

	lower []byte // buffer for the name of a field
}

// appendLower appends name to dst, with the letters A to Z in lower case: names of fields are ASCII.
func appendLower(dst, name []byte) []byte {
	for _, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

// flush passes the paragraph to f and begins the next.
func (r *paragraphReader) flush() error {
	if !r.seen {
		return nil
	}
	err := r.f(r.p)
	r.p, r.seen, r.key, r.size = paragraph{}, false, "", 0
	return err
}

func (r *paragraphReader) line(b []byte) error {
	if r.size += len(b); r.size > maxParagraph {
		return fmt.Errorf("paragraph larger than %d bytes", maxParagraph)
	}
	if b[0] == ' ' || b[0] == '\t' {
		return r.continuation(b[1:])
	}
	return r.field(b)
}

func (r *paragraphReader) continuation(rest []byte) error {
	if !r.seen {
		return errors.New("continuation line without a field")
	}
	if r.key == "" {
		return nil
	}
	// A strings.Builder would serve long fields better, but the only long field in use
	// is Release's SHA256, which has a separate loop.
	if string(rest) == "." {
		rest = nil
	}
	r.p[r.key] += "\n" + string(rest)
	return nil
}

func (r *paragraphReader) field(b []byte) error {
	name, value, ok := bytes.Cut(b, []byte(":"))
	if !ok || len(name) == 0 || bytes.ContainsAny(name, " \t") {
		return fmt.Errorf("not a field: %.40q", b)
	}
	r.seen = true
	r.key = ""
	// Most fields of an index are unwanted: compare without a string of their own.
	r.lower = appendLower(r.lower[:0], name)
	if r.want != nil && !r.want[string(r.lower)] {
		return nil
	}
	lower := string(r.lower)
	if _, dup := r.p[lower]; dup {
		return fmt.Errorf("field %s stands twice", name)
	}
	r.key = lower
	r.p[lower] = string(bytes.TrimSpace(value))
	return nil
}
