package viewers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// rates are the bit rates of a studio's rungs; the sound has soundRate.
var rates = []int{500_000, 1_000_000, 4_000_000}

const soundRate = 64_000

// studio serves a video with 30 segments of two seconds. Its director may answer first. Clients
// connect by pipes, so in a bubble of synctest time passes only while all goroutines wait: the load
// of the machine makes no difference.
type studio struct {
	segments int
	direct   func(w http.ResponseWriter, r *http.Request) (send func([]byte), handled bool)
	server   http.Server
	dialed   chan net.Conn

	mu    sync.Mutex
	asked []asked
}

// Accept returns the far end of a connection.
func (s *studio) Accept() (net.Conn, error) {
	c, ok := <-s.dialed
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (s *studio) Close() error   { return nil }
func (s *studio) Addr() net.Addr { return &net.TCPAddr{} }

func (s *studio) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	s.dialed <- far
	return near, nil
}

// newStudio returns a studio that runs until the end of the test or of the bubble.
func newStudio(t *testing.T) *studio {
	t.Helper()
	s := &studio{segments: 30, dialed: make(chan net.Conn)}
	s.server.Handler = http.HandlerFunc(s.answer)
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(s) }()
	t.Cleanup(func() {
		close(s.dialed)
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if err := s.server.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// asked is a request of a session.
type asked struct{ session, path string }

var sessionID = regexp.MustCompile(`(?:^|,)sid="([0-9a-f-]{36})"(?:,|$)`)

func (s *studio) answer(w http.ResponseWriter, r *http.Request) {
	one := asked{path: r.URL.Path}
	if id := sessionID.FindStringSubmatch(r.Header.Get("CMCD-Session")); id != nil {
		one.session = id[1]
	}
	s.mu.Lock()
	s.asked = append(s.asked, one)
	s.mu.Unlock()
	send := func(b []byte) { _, _ = w.Write(b) }
	if s.direct != nil {
		by, handled := s.direct(w, r)
		if handled {
			return
		}
		if by != nil {
			send = by
		}
	}
	track, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	rate := soundRate
	if n, err := strconv.Atoi(track); err == nil && n < len(rates) {
		rate = rates[n]
	}
	var b bytes.Buffer
	switch {
	case track == "master.m3u8":
		b.WriteString("#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"s\",NAME=\"x\",DEFAULT=YES,URI=\"sound/list.m3u8\"\n")
		for i := range rates {
			fmt.Fprintf(&b, "#EXT-X-STREAM-INF:BANDWIDTH=%d,AUDIO=\"s\",RESOLUTION=%dx9\n%d/list.m3u8\n", rates[i]+soundRate, i, i)
		}
	case name == "list.m3u8":
		b.WriteString("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MAP:URI=\"init.mp4\"\n")
		for i := range s.segments {
			fmt.Fprintf(&b, "#EXTINF:2,\n%d.m4s\n", i)
		}
		b.WriteString("#EXT-X-ENDLIST\n")
	case name == "init.mp4":
		b.Write(make([]byte, 700))
	case strings.HasSuffix(name, ".m4s"):
		b.Write(make([]byte, rate*2/8))
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	send(b.Bytes())
}

// paths returns all requests in order.
func (s *studio) paths() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]asked(nil), s.asked...)
}

// slowly sends at a number of bits a second.
func slowly(w http.ResponseWriter, r *http.Request, rate float64) func([]byte) {
	return func(b []byte) {
		began := time.Now()
		for sent := 0; sent < len(b); {
			n := min(8<<10, len(b)-sent)
			if _, err := w.Write(b[sent : sent+n]); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			sent += n
			due := began.Add(time.Duration(float64(8*sent) / rate * float64(time.Second)))
			select {
			case <-time.After(time.Until(due)):
			case <-r.Context().Done():
				return
			}
		}
	}
}

func (s *studio) run(t *testing.T, c Config) *Report {
	t.Helper()
	c.URLs, c.Dial = []string{"http://studio/master.m3u8"}, s.dial
	return play(t, c)
}
