// Package viewers plays HLS from a server with many virtual viewers at once and measures their
// experience: how long they waited for the picture, how often it stopped, at which quality they
// saw it. Run does a whole run and returns a Report, which can be written as text, JSON and SVG.
//
// The load is a closed loop. Each viewer loads one resource after another, like a player with a
// single connection, and never more than its buffer takes. Thus the load is the load of as many
// people, and a slow server gets fewer requests. The result is not the server's maximum (see fre
// bench http) but the number of viewers it serves well.
//
//	master playlist → media playlist, of picture and sound → initialisation → segment, segment, …
//
// A viewer starts with the lowest rung; later the measured bandwidth decides. After the end of
// the video the viewer starts another session. Segments are not parsed, so their content may be
// arbitrary, with the right names and lengths.
//
// Unlike a real player, a viewer does not abort a download for a smaller segment or for a seek,
// does not load picture and sound at the same time, and does not follow live playlists.
package viewers

import (
	"cmp"
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

// ErrConfig is an invalid Config. The error tells the reason.
var ErrConfig = errors.New("cannot be asked for")

// Config configures a run.
type Config struct {
	URLs     []string      // required: master playlists; each session takes one at random
	Viewers  int           // default 1
	Duration time.Duration // default 1 min
	Ramp     time.Duration // time within which viewers arrive evenly; 0: all at once

	// WeakShare is the share of viewers, from 0 to 1, on a weak network. Their rates lie between
	// WeakMin and WeakMax bits per second, evenly on a logarithmic scale; default 1 to 20 Mbit/s.
	// load.ClientConfig describes such a network.
	WeakShare        float64
	WeakMin, WeakMax float64

	// Rate fixes the bit rate of playback, in bits per second: viewers stay on the best rung
	// below it, load no sound, and a segment plays for as long as its bytes take at Rate. 0:
	// playback follows the playlists.
	Rate float64

	Seeks                float64       // random seeks per minute of playback, on average
	BufferMin, BufferMax time.Duration // range of the viewers' buffers, each at random; default 12 to 30 s
	Start                time.Duration // playback starts with this much loaded; default 2 s
	Retries              int           // of a request; default 6. After the last the session fails
	Timeout              time.Duration // of a request; default 2 min

	TLS  *tls.Config // for https; default: the system's certificates
	Seed uint64      // of all random numbers

	// Dial opens connections; default: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// filled returns c with defaults. The error is ErrConfig.
func (c Config) filled() (Config, error) {
	c.Viewers, c.Retries = cmp.Or(c.Viewers, 1), cmp.Or(c.Retries, 6)
	if c.WeakMin == 0 && c.WeakMax == 0 {
		c.WeakMin, c.WeakMax = 1e6, 20e6
	}
	if c.BufferMin == 0 && c.BufferMax == 0 {
		c.BufferMin, c.BufferMax = 12*time.Second, 30*time.Second
	}
	c.Duration, c.Start, c.Timeout = cmp.Or(c.Duration, time.Minute), cmp.Or(c.Start, 2*time.Second), cmp.Or(c.Timeout, 2*time.Minute)
	return c, cmp.Or(c.checkRun(), c.checkNetwork())
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
}

func (c *Config) checkRun() error {
	switch {
	case len(c.URLs) == 0:
		return bad("no URL to play")
	case c.Viewers < 0 || c.Viewers > 1_000_000:
		return bad("%d viewers", c.Viewers)
	case c.Retries < 0 || min(c.Duration, c.Ramp, c.Start, c.Timeout) < 0:
		return bad("nothing may be negative")
	case c.Ramp > c.Duration:
		return bad("viewers that come within %v, in a run of %v", c.Ramp, c.Duration)
	case !(c.Seeks >= 0 && c.Seeks <= 600):
		return bad("%v seeks a minute", c.Seeks)
	}
	return nil
}

func (c *Config) checkNetwork() error {
	switch {
	case !(c.WeakShare >= 0 && c.WeakShare <= 1):
		return bad("a share of %v of the viewers", c.WeakShare)
	case !(c.WeakMin >= 1000 && c.WeakMin <= c.WeakMax && c.WeakMax <= 1e12):
		return bad("a weak network of %v to %v bits a second", c.WeakMin, c.WeakMax)
	case !(c.Rate == 0 || c.Rate >= 1000 && c.Rate <= 1e12):
		return bad("a rate of %v bits a second", c.Rate)
	case c.BufferMin < c.Start || c.BufferMax < c.BufferMin:
		return bad("%v to %v loaded ahead, and playing with %v", c.BufferMin, c.BufferMax, c.Start)
	}
	return nil
}

// clock is the clock of a run.
type clock struct{ began time.Time }

// at converts a time to the time since the start of the run.
func (c clock) at(t time.Time) time.Duration { return t.Sub(c.began) }

func (c clock) now() time.Duration { return time.Since(c.began) }

// time converts a time since the start of the run to a time.
func (c clock) time(d time.Duration) time.Time { return c.began.Add(d) }

// sleep waits for d and returns true, or returns false when ctx ends.
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

// run is the state shared by the viewers of a run.
type run struct {
	Config
	clock  clock
	from   []address // the master playlists
	intake intake
}

// Run plays the master playlists at c.URLs with c.Viewers virtual viewers and returns the
// measurements. If ctx ends, Run ends early and reports the time until then, without an error.
// Errors are ErrConfig, and an unreadable playlist at the start. Later errors are counted in the
// report.
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
	// A wrong address should be an error at once, not a report full of errors.
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

// newViewer returns the i-th viewer.
func newViewer(r *run, s *stats, i int) *viewer {
	by := rand.New(rand.NewPCG(r.Seed, uint64(i)))
	v := &viewer{run: r, stats: s, index: i, rand: by, retries: r.Retries}
	v.comes = time.Duration((float64(i) + by.Float64()) / float64(r.Viewers) * float64(r.Ramp))
	v.buffer = r.BufferMin + time.Duration(by.Float64()*float64(r.BufferMax-r.BufferMin))
	// Exactly the share of all viewers, evenly distributed.
	if int(float64(i+1)*r.WeakShare+1e-9) > int(float64(i)*r.WeakShare+1e-9) {
		v.rate = logBetween(by, r.WeakMin, r.WeakMax)
	}
	return v
}
