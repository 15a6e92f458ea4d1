// Package listing caches encoded lists for clients that poll. A list is encoded once per change
// and format, and only the changed rows are encoded again. All control APIs share the package.
//
// A [Cache] belongs to one format of one list. A [Body] is an encoded list, served with an ETag.
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

// Body is an encoded JSON array to serve. A Body is immutable.
type Body struct {
	JSON []byte // ends with a newline
	ETag string // quoted; equal bytes have equal tags, until the process ends

	header [3][]string // values of Content-Type, Content-Length, ETag
}

// ServeHTTP sends the body, or 304 if the client's If-None-Match has the tag (RFC 9110, section
// 13.1.2).
func (b *Body) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header() // the keys are canonical, so plain assignment saves Set's conversion
	h["Etag"] = b.header[2]
	if has(r.Header["If-None-Match"], b.ETag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h["Content-Type"], h["Content-Length"] = b.header[0], b.header[1]
	_, _ = w.Write(b.JSON) // the client may have disconnected
}

// Send sends body and a newline as JSON. Send sets Content-Length, because otherwise net/http
// sends chunks, which Go's clients read in pieces of 4 KiB.
func Send(w http.ResponseWriter, status int, body []byte) {
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have disconnected
}

// has reports whether an If-None-Match header has the tag, by weak comparison.
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

// Cache caches the last body of one list. A row is identified by its pointer, so the value
// behind a pointer must never change, and Row must depend on nothing but the item. A Cache is
// safe for concurrent use. Callers that need the body being encoded wait for the encoding.
type Cache[T any] struct {
	Row func(buf []byte, item *T) ([]byte, error) // appends the JSON of an item to buf; required

	last atomic.Pointer[encoded[T]]
	mu   sync.Mutex // held while encoding
}

// encoded is a body with the position of each row.
type encoded[T any] struct {
	*Body
	generation uint64
	items      []*T
	ends       []int // row i ends before byte ends[i]; one byte, a comma or bracket, precedes each row
}

// At returns the body of the list at a generation. At calls list if the cache lacks the
// generation.
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

// Of returns the body of items, for lists without a generation. If nothing has changed, the cost
// is a comparison of the pointers. The cache keeps items.
func (c *Cache[T]) Of(items []*T) (*Body, error) {
	now, err := c.of(items)
	if err != nil {
		return nil, err
	}
	return now.Body, nil
}

// Rows encodes items like Of and calls each for every row, until each returns an error. Callers
// use Rows to add members to each row. The row belongs to the cache and must not be changed.
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

// encodeLocked copies the rows found in the last body and encodes the others.
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

	// A change touches few rows: most rows belong to the common head or tail of both lists.
	head := 0
	for head < min(len(items), len(last.items)) && items[head] == last.items[head] {
		head++
	}
	tail := 0
	for tail < min(len(items), len(last.items))-head && items[len(items)-1-tail] == last.items[len(last.items)-1-tail] {
		tail++
	}
	var between map[*T]int // old index of each item outside head and tail
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
				body = slices.Grow(body, row*(len(items)-i)) // assume that the remaining rows have the same size
			}
		}
		next.ends[i] = len(body)
	}
	body = append(body, ']', '\n')
	if cap(body)-len(body) > len(body)/8 {
		body = slices.Clone(body) // the body stays in memory, so drop unused capacity
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

// seed is shared by all bodies, so equal bytes have equal tags.
var seed = maphash.MakeSeed()

// NewBody returns a body of encoded JSON. The body keeps the slice.
func NewBody(json []byte) *Body {
	b := &Body{JSON: json, ETag: `"` + strconv.FormatUint(maphash.Bytes(seed, json), 36) + `"`}
	b.header = [3][]string{{"application/json"}, {strconv.Itoa(len(json))}, {b.ETag}}
	return b
}
