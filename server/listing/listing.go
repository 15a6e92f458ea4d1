// Package listing keeps encoded lists: a list that is polled is encoded once
// per change, in each format that is asked for, and of a change only the rows
// that it touched. The control APIs share it.
//
// A [Cache] belongs to one format of one list, a [Body] is what it encodes to,
// served with an ETag.
package listing

import (
	"hash/maphash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Body is an encoded JSON array, ready to be served. It is immutable.
type Body struct {
	JSON []byte // with a newline at its end
	ETag string // in its quotes; the same for the same bytes, until the process ends

	header [3][]string // values of Content-Type, Content-Length, ETag
}

// ServeHTTP answers with the body, or with 304 where the client has it already
// (If-None-Match, RFC 9110, section 13.1.2).
func (b *Body) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header() // its keys are canonical: Set would make them so, each time
	h["Etag"] = b.header[2]
	if has(r.Header["If-None-Match"], b.ETag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h["Content-Type"], h["Content-Length"] = b.header[0], b.header[1]
	_, _ = w.Write(b.JSON) // a client that has gone is no failure of ours
}

// Send answers with JSON, at whose end it puts a newline. The length goes ahead of
// it: else net/http sends chunks, which Go's clients read by 4 KiB.
func Send(w http.ResponseWriter, status int, body []byte) {
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone is no failure of ours
}

// has compares weakly, as If-None-Match wants it.
func has(tags []string, tag string) bool {
	for _, list := range tags {
		for one := range strings.SplitSeq(list, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// Cache keeps one list's last body. Rows are known by their pointers: what one
// points to must never change, and what Row returns must depend on nothing else.
// It is safe for use by several goroutines; whoever needs a body that is being
// encoded waits for it.
type Cache[T any] struct {
	Row func(buf []byte, item *T) ([]byte, error) // appends an item's JSON; required

	last atomic.Pointer[encoded[T]]
	mu   sync.Mutex // held while one is encoded
}

// encoded is a body with where each item's row is in it.
type encoded[T any] struct {
	*Body
	generation uint64
	items      []*T
	ends       []int // row i ends before byte ends[i]; a comma or bracket follows, and stands before the first
}

// At returns the body of the list at a generation; list is called when the
// cache does not have it.
func (c *Cache[T]) At(generation uint64, list func() []*T) (*Body, error) {
	if last := c.last.Load(); last != nil && last.generation == generation {
		return last.Body, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.last.Load(); last != nil && last.generation == generation {
		return last.Body, nil
	}
	next, err := c.encodeLocked(generation, list())
	if err != nil {
		return nil, err
	}
	return next.Body, nil
}

// Of returns the body of items, for lists that have no generation: it costs a
// comparison of pointers where nothing has changed. The cache keeps items.
func (c *Cache[T]) Of(items []*T) (*Body, error) {
	now, err := c.of(items)
	if err != nil {
		return nil, err
	}
	return now.Body, nil
}

// Rows is Of for lists that are served with more in each row: it calls each with
// every item's JSON, which is the cache's, until that returns an error.
func (c *Cache[T]) Rows(items []*T, each func(i int, row []byte) error) error {
	now, err := c.of(items)
	for i := 0; i < len(items) && err == nil; i++ {
		err = each(i, now.row(i))
	}
	return err
}

func (c *Cache[T]) of(items []*T) (*encoded[T], error) {
	if last := c.last.Load(); last != nil && slices.Equal(last.items, items) {
		return last, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.encodeLocked(0, items)
}

// encodeLocked copies the rows that the last body has and encodes the others.
func (c *Cache[T]) encodeLocked(generation uint64, items []*T) (*encoded[T], error) {
	last := c.last.Load()
	if last == nil {
		last = &encoded[T]{Body: new(Body)}
	}
	next := &encoded[T]{generation: generation, items: items, ends: make([]int, len(items))}
	if last.JSON != nil && slices.Equal(last.items, items) {
		next.Body, next.ends = last.Body, last.ends
		c.last.Store(next)
		return next, nil
	}

	// A change touches few rows: most lie in what both lists begin or end with.
	head := 0
	for head < min(len(items), len(last.items)) && items[head] == last.items[head] {
		head++
	}
	tail := 0
	for tail < min(len(items), len(last.items))-head && items[len(items)-1-tail] == last.items[len(last.items)-1-tail] {
		tail++
	}
	var between map[*T]int // where the rest was
	for i := head; i < len(last.items)-tail; i++ {
		if between == nil {
			between = make(map[*T]int, len(last.items)-tail-head)
		}
		between[last.items[i]] = i
	}

	body := make([]byte, 0, len(last.JSON)+1024)
	body = append(body, '[')
	for i, item := range items {
		if i > 0 {
			body = append(body, ',')
		}
		at, known := between[item]
		switch {
		case i < head:
			at, known = i, true
		case i >= len(items)-tail:
			at, known = i-len(items)+len(last.items), true
		}
		if known {
			body = append(body, last.row(at)...)
		} else {
			before := len(body)
			var err error
			if body, err = c.Row(body, item); err != nil {
				return nil, err
			}
			if row := len(body) - before + 1; cap(body)-len(body) < row {
				body = slices.Grow(body, row*(len(items)-i)) // the others are much like it
			}
		}
		next.ends[i] = len(body)
	}
	body = append(body, ']', '\n')
	if cap(body)-len(body) > len(body)/8 {
		body = slices.Clone(body) // it stays for long
	}
	next.Body = NewBody(body)
	c.last.Store(next)
	return next, nil
}

func (e *encoded[T]) row(i int) []byte {
	start := 1
	if i > 0 {
		start = e.ends[i-1] + 1
	}
	return e.JSON[start:e.ends[i]]
}

// seed is one for all, so that the same bytes have the same tag.
var seed = maphash.MakeSeed()

// NewBody makes a body of JSON that is encoded already, which it keeps.
func NewBody(json []byte) *Body {
	b := &Body{JSON: json, ETag: `"` + strconv.FormatUint(maphash.Bytes(seed, json), 36) + `"`}
	b.header = [3][]string{{"application/json"}, {strconv.Itoa(len(json))}, {b.ETag}}
	return b
}
