// Package intake bounds what is taken in before it is known whose it is, or before a quota was
// asked, connections and request bodies: how many come at a time, and how long each body may
// take. Who sends one byte after the other keeps nobody else from sending theirs.
package intake

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// Places are for what may come at a time: All, and of one sender Of. They may be used from
// several goroutines.
type Places[Sender comparable] struct {
	All, Of int
	Shared  func(Sender) bool // those that are many, and count among all alone; nil: nobody is

	mu    sync.Mutex
	taken int
	of    map[Sender]int
}

// Enter takes a place for one of from's, if there is one, until leave is called.
func (p *Places[Sender]) Enter(from Sender) (leave func(), ok bool) {
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

// ErrSlow says that a body has taken too long.
var ErrSlow = errors.New("the body takes too long to come")

// Within reads a request's body for so long: ErrSlow after that. done is called once the
// reading has ended.
func Within(w http.ResponseWriter, body io.Reader, most time.Duration) (_ io.Reader, done func()) {
	b := &timedBody{body: body, until: time.Now().Add(most)}
	ended := make(chan struct{})
	timer := time.AfterFunc(most, func() {
		defer close(ended)
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // where it cannot, nobody waits for a client
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
