package api

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrDetached reports that the user typed the keys that detach from a terminal.
var ErrDetached = errors.New("detached")

// DetachKeys is the default sequence of keys that detach from a terminal.
const DetachKeys = "ctrl-p,ctrl-q"

// ParseKeys parses a sequence of keys in Docker's notation, separated by commas. A key is a
// character, or ctrl- followed by a letter or a character of @[\]^_. Empty text means
// [DetachKeys].
func ParseKeys(text string) ([]byte, error) {
	if text == "" {
		text = DetachKeys
	}
	var keys []byte
	for key := range strings.SplitSeq(text, ",") {
		name, ctrl := strings.CutPrefix(strings.ToLower(key), "ctrl-")
		switch {
		case ctrl && len(name) == 1 && (name[0] >= 'a' && name[0] <= 'z' || strings.Contains(`@[\]^_`, name)):
			keys = append(keys, name[0]&0x1f)
		case len(key) == 1:
			keys = append(keys, key[0])
		default:
			return nil, fmt.Errorf("bad key %q: use a character, or ctrl- and a letter or one of @[\\]^_", key)
		}
	}
	return keys, nil
}

// EscapeReader reads terminal input until the user types the detach keys. The reader drops the
// keys and all later input, and returns ErrDetached. A partial sequence is held back until the
// next key.
type EscapeReader struct {
	From io.Reader
	Keys []byte // not empty

	seen  int // number of Keys matched and held back
	ready []byte
	err   error
}

// Read implements io.Reader.
func (e *EscapeReader) Read(b []byte) (int, error) {
	for len(e.ready) == 0 && e.err == nil {
		var n int
		n, e.err = e.From.Read(b)
		e.scan(b[:n])
		if e.err != nil {
			e.release()
		}
	}
	n := copy(b, e.ready)
	e.ready = slices.Delete(e.ready, 0, n)
	if len(e.ready) > 0 {
		return n, nil
	}
	return n, e.err
}

func (e *EscapeReader) scan(b []byte) {
	for _, c := range b {
		if c != e.Keys[e.seen] {
			e.release()
			if c != e.Keys[0] {
				e.ready = append(e.ready, c)
				continue
			}
		}
		if e.seen++; e.seen == len(e.Keys) {
			e.seen, e.err = 0, ErrDetached
			return
		}
	}
}

// release passes on the keys held back.
func (e *EscapeReader) release() {
	e.ready = append(e.ready, e.Keys[:e.seen]...)
	e.seen = 0
}
