package viewers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/fre-engine/fre/bench/internal/load"
)

// Times of a viewer, in part as in hls.js.
const (
	pauseMost = 100 * time.Millisecond // most random extra pause with a full buffer
	backOff   = time.Second            // after the first error; doubles with each error
	backOffTo = 8 * time.Second        // limit of the pause; also the pause after a failed session
)

// givenUpError ends a session.
type givenUpError struct{ error }

func (e *givenUpError) Unwrap() error { return e.error }

// viewer is a virtual viewer. A single goroutine runs a viewer.
type viewer struct {
	*run
	stats   *stats
	index   int
	rand    *rand.Rand
	comes   time.Duration
	buffer  time.Duration // loads ahead up to this playing time
	rate    float64       // of a weak network, in bits per second; 0: not weak
	retries int

	clients map[string]*load.Client // by server
	request []byte
	text    bytes.Buffer

	// State of the session.
	id        string
	player    *player
	bandwidth bandwidth
	heads     map[part]bool      // loaded initialisation segments
	lists     map[address]*media // loaded media playlists
	rung      int                // -1: nothing loaded yet
	seekAt    time.Duration      // time of the next seek; 0: not drawn yet
}

func logBetween(r *rand.Rand, low, high float64) float64 {
	return low * math.Exp(r.Float64()*math.Log(high/low))
}

// live runs session after session until ctx ends.
func (v *viewer) live(ctx context.Context) {
	defer v.close()
	if !sleep(ctx, v.comes) {
		return
	}
	came := v.clock.now()
	defer func() { v.stats.was(interval{came, v.clock.now()}) }()
	for ctx.Err() == nil {
		var given *givenUpError
		if err := v.session(ctx); errors.As(err, &given) {
			v.stats.gaveUp()
			sleep(ctx, v.around(backOffTo))
		}
	}
}

func (v *viewer) close() {
	for _, c := range v.clients {
		c.Close()
	}
}

// around returns a random duration from d/2 to d.
func (v *viewer) around(d time.Duration) time.Duration {
	return d/2 + time.Duration(v.rand.Int64N(int64(d/2)+1))
}

// session plays a video once.
func (v *viewer) session(ctx context.Context) error {
	now := v.clock.now()
	v.id = fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", v.rand.Uint32(), v.rand.Uint32N(1<<16), v.rand.Uint32N(1<<12), 0x8000|v.rand.Uint32N(1<<14), v.rand.Uint64N(1<<48))
	v.player = &player{enough: v.Start, since: now, now: now, tracks: []*track{{}}}
	v.bandwidth = bandwidth{}
	v.heads, v.lists, v.rung, v.seekAt = map[part]bool{}, map[address]*media{}, -1, 0
	v.stats.begins()
	defer func() {
		v.player.leave(v.clock.now())
		v.look()
		v.stats.played(v.player.played)
	}()
	m, err := v.readMaster(ctx, v.from[v.rand.IntN(len(v.from))])
	if err != nil {
		return err
	}
	if m.rungs[0].sound != (address{}) && v.Rate == 0 {
		v.player.tracks = append(v.player.tracks, &track{})
	}
	for {
		v.player.advance(v.clock.now())
		v.look()
		if v.player.state == ended {
			return nil
		}
		if err := v.maySeek(ctx, m); err != nil {
			return err
		}
		t := v.next()
		if t != nil && t.ahead < v.buffer {
			if err := v.load(ctx, m, t); err != nil {
				return err
			}
			continue
		}
		wait, _ := v.player.ahead()
		if t != nil {
			wait = t.ahead - v.buffer + time.Duration(v.rand.Int64N(int64(pauseMost)))
		}
		if v.seekAt > 0 {
			wait = min(wait, v.seekAt-v.player.now)
		}
		if !sleep(ctx, max(wait, 0)+time.Millisecond) {
			return ctx.Err()
		}
	}
}

// next returns the track with the least ahead, or nil if all is loaded.
func (v *viewer) next() *track {
	var least *track
	for _, t := range v.player.tracks {
		if !t.whole && (least == nil || t.ahead < least.ahead) {
			least = t
		}
	}
	return least
}

// look counts the events of the player and empties them.
func (v *viewer) look() {
	p := v.player
	if len(p.starts)+len(p.seeks)+len(p.stalls) == 0 {
		return
	}
	v.stats.saw(v.index, p)
	p.starts, p.seeks, p.stalls = p.starts[:0], p.seeks[:0], p.stalls[:0]
}

// maySeek seeks to a random segment when the next seek is due.
func (v *viewer) maySeek(ctx context.Context, m *master) error {
	p := v.player
	if v.Seeks == 0 || p.state != playing || v.rung < 0 {
		return nil
	}
	if v.seekAt == 0 {
		v.seekAt = p.now + max(time.Duration(v.rand.ExpFloat64()/v.Seeks*float64(time.Minute)), 1)
	}
	if p.now < v.seekAt {
		return nil
	}
	list, err := v.readMedia(ctx, m.rungs[v.rung].media)
	if err != nil {
		return err
	}
	v.seekAt = 0
	p.seek(v.clock.now(), list.segments[v.rand.IntN(len(list.segments))].start)
	return nil
}

// load loads a track's next segment, with its playlist and initialisation segment if necessary.
func (v *viewer) load(ctx context.Context, m *master, t *track) error {
	p := v.player
	isPicture := t == p.tracks[0]
	if isPicture {
		v.choose(m)
	}
	rung := &m.rungs[max(v.rung, 0)]
	from := rung.media
	if !isPicture && rung.sound != (address{}) {
		from = rung.sound
	} else if !isPicture {
		p.finish(v.clock.now(), t) // the rung's segments contain the sound
		return nil
	}
	list, err := v.readMedia(ctx, from)
	if err != nil {
		return err
	}
	i := list.at(t.at)
	if i < 0 {
		p.finish(v.clock.now(), t)
		return nil
	}
	s := &list.segments[i]
	what := wanted{part: s.part, kind: soundSegment, duration: s.duration}
	if isPicture {
		what.kind, what.bandwidth = pictureSegment, rung.bandwidth
	}
	if s.head != (part{}) && !v.heads[s.head] {
		if _, err := v.fetch(ctx, wanted{part: s.head, kind: initialisation}, nil); err != nil {
			return err
		}
		v.heads[s.head] = true
	}
	got, err := v.fetch(ctx, what, nil)
	if err != nil {
		return err
	}
	end := s.start + s.duration
	plays := end - t.at
	if v.Rate > 0 {
		plays = time.Duration(float64(8*got.bytes) / v.Rate * float64(time.Second))
	}
	if isPicture {
		v.bandwidth.add(got.bytes, got.took)
	}
	v.stats.loaded(got, isPicture, plays, rung)
	p.load(got.end, t, plays, end)
	return nil
}

// choose chooses the next rung.
func (v *viewer) choose(m *master) {
	to := 0
	switch {
	case v.Rate > 0:
		for i, r := range m.rungs {
			if float64(r.bandwidth) <= v.Rate {
				to = i
			}
		}
	case v.rung >= 0:
		to = v.bandwidth.choose(m.rungs, v.rung)
	}
	if v.rung >= 0 && to != v.rung {
		v.stats.switches(to > v.rung)
	}
	v.rung = to
}

func (v *viewer) readMaster(ctx context.Context, a address) (*master, error) {
	p, err := v.read(ctx, a, true)
	if err != nil {
		return nil, err
	}
	return p.master, nil
}

// readMedia reads a media playlist, once per session.
func (v *viewer) readMedia(ctx context.Context, a address) (*media, error) {
	if m := v.lists[a]; m != nil {
		return m, nil
	}
	p, err := v.read(ctx, a, false)
	if err != nil {
		return nil, err
	}
	v.lists[a] = p.media
	return p.media, nil
}

func (v *viewer) read(ctx context.Context, a address, isMaster bool) (*parsed, error) {
	v.text.Reset()
	if _, err := v.fetch(ctx, wanted{part: part{address: a}, kind: playlist}, &v.text); err != nil {
		return nil, err
	}
	p, err := v.intake.read(a, v.text.Bytes(), isMaster)
	if err != nil {
		v.stats.failed(errPlaylist.Error())
		return nil, &givenUpError{fmt.Errorf("%s: %w", a, err)}
	}
	return p, nil
}

// kind is the kind of a fetched resource, by CMCD's key ot.
type kind string

const (
	playlist       kind = "m"
	initialisation kind = "i"
	pictureSegment kind = "v"
	soundSegment   kind = "a"
)

// wanted describes a request.
type wanted struct {
	part
	kind      kind
	bandwidth int64         // of the rung; 0: none
	duration  time.Duration // playing time
}

// fetched describes a complete answer.
type fetched struct {
	bytes int64
	took  time.Duration // from sending the request to the last byte
	end   time.Duration
}

// fetch requests a resource, with retries, until it has arrived or the session fails.
func (v *viewer) fetch(ctx context.Context, what wanted, text *bytes.Buffer) (fetched, error) {
	c := v.clients[what.server]
	if c == nil {
		var err error
		if c, err = load.NewClient(load.ClientConfig{
			URL: what.server, TLS: v.TLS, Timeout: v.Timeout, Rate: v.rate, Dial: v.Dial,
		}); err != nil {
			return fetched{}, &givenUpError{err}
		}
		if v.clients == nil {
			v.clients = map[string]*load.Client{}
		}
		v.clients[what.server] = c
	}
	for try := 0; ; try++ {
		if ctx.Err() != nil {
			return fetched{}, ctx.Err()
		}
		v.request = v.ask(v.request[:0], c.Host(), what)
		if text != nil {
			text.Reset()
		}
		sent := v.clock.now()
		a, err := c.Do(ctx, v.request, text)
		end := v.clock.now()
		if err != nil && ctx.Err() != nil {
			v.stats.unfinished(v.index, sent, end)
			return fetched{}, ctx.Err()
		}
		v.stats.answered(v.index, what.kind, sent, end, a, err)
		if err == nil {
			switch a.Status {
			case http.StatusOK, http.StatusPartialContent:
				return fetched{bytes: a.Bytes, took: end - sent, end: end}, nil
			}
			err = fmt.Errorf("status %d", a.Status)
		}
		// An error of the request is permanent (RFC 9110, 15.5), except for two statuses.
		fault := a.Status >= 300 && a.Status < 500 && a.Status != http.StatusRequestTimeout && a.Status != http.StatusTooManyRequests
		if fault || try >= v.retries {
			return fetched{}, &givenUpError{fmt.Errorf("GET %s: %w", what.address, err)}
		}
		wait := v.around(min(backOff<<min(try, 10), backOffTo))
		if a.RetryAfter > 0 {
			wait = a.RetryAfter + v.around(backOff)
		}
		if !sleep(ctx, wait) {
			return fetched{}, ctx.Err()
		}
	}
}

// ask appends a request. It has the session's id in CMCD (CTA-5004), as real players send it, to
// identify the session in a server's log.
func (v *viewer) ask(b []byte, host string, what wanted) []byte {
	b = append(b, "GET "...)
	b = append(b, what.path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\nUser-Agent: fre-bench\r\nAccept: */*\r\n"...)
	if what.size > 0 {
		b = fmt.Appendf(b, "Range: bytes=%d-%d\r\n", what.offset, what.offset+what.size-1)
	}
	b = append(b, "CMCD-Object: "...)
	if what.bandwidth > 0 {
		b = append(b, "br="...)
		b = strconv.AppendInt(b, (what.bandwidth+999)/1000, 10)
		b = append(b, ',')
	}
	if what.duration > 0 {
		b = append(b, "d="...)
		b = strconv.AppendInt(b, what.duration.Milliseconds(), 10)
		b = append(b, ',')
	}
	b = append(b, "ot="...)
	b = append(b, what.kind...)
	b = append(b, "\r\n"...)
	if p := v.player; p != nil {
		ahead, _ := p.ahead()
		b = append(b, "CMCD-Request: bl="...)
		b = strconv.AppendInt(b, ahead.Milliseconds()/100*100, 10)
		if rate := v.bandwidth.rate(); rate > 0 {
			b = append(b, ",mtp="...)
			b = strconv.AppendInt(b, int64(rate/100_000)*100, 10)
		}
		if p.state != playing {
			b = append(b, ",su"...)
		}
		b = append(b, "\r\nCMCD-Session: sf=h,sid=\""...)
		b = append(b, v.id...)
		b = append(b, "\",st=v\r\n"...)
		if p.state == stalled {
			b = append(b, "CMCD-Status: bs\r\n"...)
		}
	}
	return append(b, "\r\n"...)
}
