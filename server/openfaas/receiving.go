package openfaas

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/fre-engine/fre/access"
)

// A build's body is taken in before anybody knows whose it is. So many are at a time, of one
// address fewer, and each has so much time: who sends one byte after the other, with whatever
// signature, keeps nobody else from building. What is built then is for the tenant's quota.
const (
	maxReceiving   = 16
	maxReceivingOf = 4
	receiveTime    = 2 * time.Minute
)

// receiving counts the bodies that are being taken in.
type receiving struct {
	mu  sync.Mutex
	all int
	of  map[netip.Prefix]int
}

// enter takes a place for a body of client's, if there is one, until leave is called.
func (r *receiving) enter(client netip.Addr) (leave func(), ok bool) {
	from := access.Block(client) // all that have no address are one
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all >= maxReceiving || r.of[from] >= maxReceivingOf {
		return nil, false
	}
	if r.of == nil {
		r.of = map[netip.Prefix]int{}
	}
	r.all++
	r.of[from]++
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all--
		if r.of[from]--; r.of[from] == 0 {
			delete(r.of, from)
		}
	}), true
}

// errSlowBody says that a body has taken too long.
var errSlowBody = errors.New("the build context takes too long to come")

// within reads a request's body for so long: errSlowBody after that. done is called once the
// reading has ended.
func within(w http.ResponseWriter, body io.Reader, most time.Duration) (_ io.Reader, done func()) {
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
		return 0, errSlowBody
	}
	return n, err
}
