package api

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrDetached says that the keys were typed that leave a terminal.
var ErrDetached = errors.New("detached")

// DetachKeys leave a terminal unless others are named.
const DetachKeys = "ctrl-p,ctrl-q"

// ParseKeys reads keys in Docker's notation, with commas between them: a character,
// or ctrl- with a letter or one of @[\]^_. None are [DetachKeys].
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
			return nil, fmt.Errorf("%q is no key: use a character, or ctrl- and a letter or one of @[\\]^_", key)
		}
	}
	return keys, nil
}

// EscapeReader reads what is typed at a terminal, up to the keys that leave it:
// they, and what is behind them, are dropped, and it ends with ErrDetached. Keys
// that could begin the sequence are held back until the next one is typed.
type EscapeReader struct {
	From io.Reader
	Keys []byte // not empty

	seen  int // of the keys, which are held back
	ready []byte
	err   error
}

// Read is that of an io.Reader.
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

// release gives up what was held back.
func (e *EscapeReader) release() {
	e.ready = append(e.ready, e.Keys[:e.seen]...)
	e.seen = 0
}
