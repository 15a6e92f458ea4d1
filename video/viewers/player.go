package viewers

import "time"

// state is what a player is doing.
type state int

const (
	starting state = iota // it has not shown anything yet
	playing
	stalled // it has run out of what to play: it rebuffers
	seeking // it was sent elsewhere, and waits for what is there
	ended   // all was played
)

// player is the model of a player's buffer. It knows no clock: whoever loads tells it when
// what has come, and what it did in between follows, for a buffer only runs down then.
type player struct {
	enough time.Duration // it begins, and goes on after a stall, with this much

	state  state
	since  time.Duration // when the state began
	now    time.Duration // until when it is reckoned
	tracks []*track
	played time.Duration

	// What happened since somebody looked, who empties them.
	starts, seeks []time.Duration // how long each took
	stalls        []interval      // those that are over
}

// track is what is loaded of one, picture or sound.
type track struct {
	at    time.Duration // the place in the medium up to which it is loaded
	ahead time.Duration // how long that plays on
	whole bool          // there is nothing behind it
}

// interval is from one time to another.
type interval struct{ from, to time.Duration }

// ahead is how long it plays on, and whether that is up to the end.
func (p *player) ahead() (d time.Duration, whole bool) {
	whole = true
	for _, t := range p.tracks {
		switch {
		case t.whole && whole:
			d = max(d, t.ahead)
		case !t.whole && whole:
			d, whole = t.ahead, false
		case !t.whole:
			d = min(d, t.ahead)
		}
	}
	return d, whole
}

// advance reckons until now.
func (p *player) advance(now time.Duration) {
	elapsed := now - p.now
	if elapsed <= 0 {
		return
	}
	if p.state == playing {
		have, whole := p.ahead()
		d := min(elapsed, have)
		for _, t := range p.tracks {
			t.ahead = max(t.ahead-d, 0)
		}
		p.played += d
		if d < elapsed {
			p.state, p.since = stalled, p.now+d
			if whole {
				p.state = ended
			}
		}
	}
	p.now = now
}

// load adds to t what plays for d, up to a place in the medium.
func (p *player) load(now time.Duration, t *track, d, at time.Duration) {
	p.advance(now)
	t.ahead += d
	t.at = at
	p.goOn()
}

// finish says that there is nothing behind what is loaded of t.
func (p *player) finish(now time.Duration, t *track) {
	p.advance(now)
	t.whole = true
	p.goOn()
}

// goOn plays once there is enough.
func (p *player) goOn() {
	if have, whole := p.ahead(); have < p.enough && !whole {
		return
	}
	switch p.state {
	case starting:
		p.starts = append(p.starts, p.now-p.since)
	case stalled:
		p.stalls = append(p.stalls, interval{p.since, p.now})
	case seeking:
		p.seeks = append(p.seeks, p.now-p.since)
	case playing, ended:
		return
	}
	p.state, p.since = playing, p.now
}

// seek goes to a place in the medium: what was loaded is lost.
func (p *player) seek(now, at time.Duration) {
	p.advance(now)
	for _, t := range p.tracks {
		*t = track{at: at}
	}
	p.state, p.since = seeking, p.now
}

// leave ends it at now: a stall that goes on is one.
func (p *player) leave(now time.Duration) {
	p.advance(now)
	if p.state == stalled {
		p.stalls = append(p.stalls, interval{p.since, p.now})
	}
	p.state = ended
}
