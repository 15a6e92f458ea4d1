// Package intake limits unauthenticated input, and input that no quota covers yet: the number of
// concurrent connections and request bodies, and the time of each body. A slow sender therefore
// cannot block other senders.
package intake

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/fre-engine/fre/failure"
)

// Slots limits concurrent uses: All in total, and Of per sender. Slots is safe for concurrent
// use.
type Slots[Sender comparable] struct {
	All, Of int
	Shared  func(Sender) bool // senders that stand for many, which count only towards All; nil: none

	mu    sync.Mutex
	taken int
	of    map[Sender]int
}

// Enter reserves a slot for a use by from, and reports whether a slot was free. The caller
// calls leave to free the slot; further calls of leave do nothing.
func (p *Slots[Sender]) Enter(from Sender) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.All || p.of[from] >= p.Of && (p.Shared == nil || !p.Shared(from)) {
		return nil, false
	}
	if p.of == nil {
		p.of = map[Sender]int{}
	}
	p.taken++
	p.of[from]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken--
		if p.of[from]--; p.of[from] == 0 {
			delete(p.of, from)
		}
	}), true
}

// ErrSlow means that a body took too long.
var ErrSlow = failure.New(failure.SlowBody, "the body takes too long to come", "")

// Within returns a reader of a request's body that fails with ErrSlow after the time most. The
// caller calls done when the reading has ended.
func Within(w http.ResponseWriter, body io.Reader, most time.Duration) (_ io.Reader, done func()) {
	b := &timedBody{body: body, until: time.Now().Add(most)}
	ended := make(chan struct{})
	timer := time.AfterFunc(most, func() {
		defer close(ended)
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // a writer without deadlines has no client to wait for
	})
	return b, func() {
		if !timer.Stop() {
			<-ended
		}
	}
}

type timedBody struct {
	body  io.Reader
	until time.Time
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := 0, error(nil)
	if time.Now().Before(b.until) {
		n, err = b.body.Read(p)
	}
	if !errors.Is(err, io.EOF) && !time.Now().Before(b.until) {
		return 0, ErrSlow
	}
	return n, err
}
