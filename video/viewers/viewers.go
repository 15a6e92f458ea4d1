// Package viewers plays HLS from a server with many virtual viewers at once and tells what
// they lived through: how long they waited for the picture, how often it stopped, in what
// quality they saw it. Run is all of it; a Report is written as text, JSON and SVG.
//
// It is a closed loop: each viewer loads one thing after another, as a player does that has
// one connection, and never more than its buffer takes. So the load is what that many
// people would cause, and a server that becomes slow is asked less. What is measured is not how
// much it can do at most (fre bench http tells), but how many it serves well.
//
//	master playlist → media playlist, of picture and sound → initialisation → segment, segment, …
//
// The lowest rung is first; then downloads tell what the network lets through. A viewer who has
// seen all begins anew, as another session. No segment is looked into, so that what is
// played can be anything of the right names and lengths.
//
// What players do besides, and viewers here do not: they do not give a download up for a
// smaller one or for a seek, load picture and sound at the same time, or follow live playlists.
package viewers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"time"
)

// ErrConfig says that a Config cannot be carried out; the error says why.
var ErrConfig = errors.New("cannot be asked for")

// Config says what to play, with whom, and for how long.
type Config struct {
	URLs     []string      // required: of master playlists; each session takes one
	Viewers  int           // default 1
	Duration time.Duration // default 1 min
	Ramp     time.Duration // viewers come evenly within it; 0: all at once

	// WeakShare is the share of viewers, from 0 to 1, whom WeakMin to WeakMax bits a second
	// reach, evenly on a logarithmic scale; default 1 to 20 Mbit/s. See load.ClientConfig for
	// what such a network is.
	WeakShare        float64
	WeakMin, WeakMax float64

	// Rate has viewers load at this many bits a second of playing: they stay on the best rung
	// below it, load no sound, and a segment plays for as long as its bytes take at Rate. 0: as the
	// playlists say.
	Rate float64

	Seeks                float64       // to a place by chance, each minute of playing on average
	BufferMin, BufferMax time.Duration // viewers load ahead this much, each its own; default 12 to 30 s
	Start                time.Duration // they play with this much loaded; default 2 s
	Retries              int           // of a request; default 6. Then the session is given up
	Timeout              time.Duration // of one request; default 2 min

	TLS  *tls.Config // for https; default: the system's certificates
	Seed uint64      // of all that is by chance

	// Dial makes connections; default: a net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// filled is c with its defaults.
func (c Config) filled() (Config, error) {
	bad := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
	}
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	if c.Viewers == 0 {
		c.Viewers = 1
	}
	if c.Retries == 0 {
		c.Retries = 6
	}
	if c.WeakMin == 0 && c.WeakMax == 0 {
		c.WeakMin, c.WeakMax = 1e6, 20e6
	}
	if c.BufferMin == 0 && c.BufferMax == 0 {
		c.BufferMin, c.BufferMax = 12*time.Second, 30*time.Second
	}
	def(&c.Duration, time.Minute)
	def(&c.Start, 2*time.Second)
	def(&c.Timeout, 2*time.Minute)
	switch {
	case len(c.URLs) == 0:
		return bad("no URL to play")
	case c.Viewers < 0 || c.Viewers > 1_000_000:
		return bad("%d viewers", c.Viewers)
	case c.Duration < 0 || c.Ramp < 0 || c.Start < 0 || c.Retries < 0 || c.Timeout < 0:
		return bad("nothing may be negative")
	case c.Ramp > c.Duration:
		return bad("viewers that come within %v, in a run of %v", c.Ramp, c.Duration)
	case !(c.WeakShare >= 0 && c.WeakShare <= 1):
		return bad("a share of %v of the viewers", c.WeakShare)
	case !(c.WeakMin >= 1000 && c.WeakMin <= c.WeakMax && c.WeakMax <= 1e12):
		return bad("a weak network of %v to %v bits a second", c.WeakMin, c.WeakMax)
	case !(c.Rate == 0 || c.Rate >= 1000 && c.Rate <= 1e12):
		return bad("a rate of %v bits a second", c.Rate)
	case !(c.Seeks >= 0 && c.Seeks <= 600):
		return bad("%v seeks a minute", c.Seeks)
	case c.BufferMin < c.Start || c.BufferMax < c.BufferMin:
		return bad("%v to %v loaded ahead, and playing with %v", c.BufferMin, c.BufferMax, c.Start)
	}
	return c, nil
}

// clock is a run's.
type clock struct{ began time.Time }

// at is how long the run had lasted at t.
func (c clock) at(t time.Time) time.Duration { return t.Sub(c.began) }

func (c clock) now() time.Duration { return time.Since(c.began) }

// time is when the run has lasted d.
func (c clock) time(d time.Duration) time.Time { return c.began.Add(d) }

// sleep waits; it is false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// run is what the viewers of one share.
type run struct {
	Config
	clock  clock
	from   []address // of the master playlists
	intake intake
}

// Run plays the master playlists at c.URLs with c.Viewers virtual viewers and returns what they
// lived through. The end of ctx ends it early: the report is then of what was until then,
// and no error. Errors are ErrConfig, and that a playlist cannot be had at the beginning;
// what goes wrong later is counted in the report.
func Run(ctx context.Context, c Config) (*Report, error) {
	c, err := c.filled()
	if err != nil {
		return nil, err
	}
	r := &run{Config: c, clock: clock{time.Now()}}
	for _, text := range c.URLs {
		u, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		a, err := addressOf(u)
		if err != nil {
			return nil, fmt.Errorf("%w: URL %q: give a whole one, such as http://localhost:8090/assets/ID/hls/master.m3u8", ErrConfig, text)
		}
		r.from = append(r.from, a)
	}
	// Whoever names a wrong address wants to be told so, not to get a report of errors.
	if err := r.check(ctx); err != nil {
		return nil, err
	}

	r.clock.began = time.Now()
	s := newStats(&r.Config, r.clock)
	timed, cancel := context.WithTimeout(ctx, c.Duration)
	defer cancel()
	var wait sync.WaitGroup
	for i := range c.Viewers {
		v := newViewer(r, s, i)
		wait.Go(func() { v.live(timed) })
	}
	wait.Wait()
	return s.report(ctx.Err() != nil), nil
}

// check reads all playlists once.
func (r *run) check(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := newViewer(r, newStats(&r.Config, r.clock), 0)
	v.rate, v.retries, v.lists = 0, 0, map[address]*media{}
	defer v.close()
	for _, from := range r.from {
		m, err := v.readMaster(ctx, from)
		if err != nil {
			return err
		}
		for _, rung := range m.rungs {
			if _, err := v.readMedia(ctx, rung.media); err != nil {
				return err
			}
			if rung.sound != (address{}) && r.Rate == 0 {
				if _, err := v.readMedia(ctx, rung.sound); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// newViewer is the i-th.
func newViewer(r *run, s *stats, i int) *viewer {
	by := rand.New(rand.NewPCG(r.Seed, uint64(i)))
	v := &viewer{run: r, stats: s, index: i, rand: by, retries: r.Retries}
	v.comes = time.Duration((float64(i) + by.Float64()) / float64(r.Viewers) * float64(r.Ramp))
	v.buffer = r.BufferMin + time.Duration(by.Float64()*float64(r.BufferMax-r.BufferMin))
	// Exactly the share of them, evenly among them.
	if int(float64(i+1)*r.WeakShare+1e-9) > int(float64(i)*r.WeakShare+1e-9) {
		v.rate = logBetween(by, r.WeakMin, r.WeakMax)
	}
	return v
}
