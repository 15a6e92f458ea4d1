package debian

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
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
	p := paragraph{}
	seen, key, size, line := false, "", 0, 0
	flush := func() error {
		if !seen {
			return nil
		}
		err := f(p)
		p, seen, key, size = paragraph{}, false, "", 0
		return err
	}
	for sc.Scan() {
		line++
		b := bytes.TrimRight(sc.Bytes(), " \t\r")
		if len(b) == 0 {
			if err := flush(); err != nil {
				return err
			}
			continue
		}
		if b[0] == '#' {
			continue
		}
		if size += len(b); size > maxParagraph {
			return fmt.Errorf("line %d: paragraph larger than %d bytes", line, maxParagraph)
		}
		if b[0] == ' ' || b[0] == '\t' {
			if !seen {
				return fmt.Errorf("line %d: continuation line without a field", line)
			}
			if key != "" {
				// A strings.Builder would serve long fields better, but the only long field in use
				// is Release's SHA256, which has a separate loop.
				rest := string(b[1:])
				if rest == "." {
					rest = ""
				}
				p[key] += "\n" + rest
			}
			continue
		}
		name, value, ok := bytes.Cut(b, []byte(":"))
		if !ok || len(name) == 0 || bytes.ContainsAny(name, " \t") {
			return fmt.Errorf("line %d: not a field: %.40q", line, b)
		}
		seen = true
		lower := strings.ToLower(string(name))
		key = ""
		if want == nil || want[lower] {
			if _, dup := p[lower]; dup {
				return fmt.Errorf("line %d: field %s stands twice", line, name)
			}
			key = lower
			p[key] = string(bytes.TrimSpace(value))
		}
	}
	if err := sc.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("line %d: longer than %d bytes", line+1, maxLine)
		}
		return err
	}
	return flush()
}
