package viewers

import "time"

// state is the state of a player.
type state int

const (
	starting state = iota // nothing was shown yet
	playing
	stalled // the buffer is empty: rebuffering
	seeking // after a seek, until enough is loaded
	ended   // played to the end
)

// player models a player's buffer, without a clock of its own: the caller passes the time of each
// event. Between two events the buffer only drains, so the player can reconstruct the state in
// between.
type player struct {
	enough time.Duration // playback starts, and resumes after a stall, with this much loaded

	state  state
	since  time.Duration // start of the state
	now    time.Duration // time of the last update
	tracks []*track
	played time.Duration

	// Events since the last look. The reader empties them.
	starts, seeks []time.Duration // duration of each
	stalls        []interval      // finished stalls
}

// track is the loaded part of a track, picture or sound.
type track struct {
	at    time.Duration // end of the loaded part in the medium
	ahead time.Duration // playing time of the loaded part
	whole bool          // loaded to the end of the medium
}

// interval is a stretch of the run.
type interval struct{ from, to time.Duration }

// ahead returns the playing time of the buffer, and whether the buffer reaches the end.
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

// advance updates the model to now.
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

// load adds a segment of playing time d to t, up to position at in the medium.
func (p *player) load(now time.Duration, t *track, d, at time.Duration) {
	p.advance(now)
	t.ahead += d
	t.at = at
	p.goOn()
}

// finish marks t as loaded to its end.
func (p *player) finish(now time.Duration, t *track) {
	p.advance(now)
	t.whole = true
	p.goOn()
}

// goOn starts playback once enough is loaded.
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

// seek jumps to position at in the medium and drops the buffer.
func (p *player) seek(now, at time.Duration) {
	p.advance(now)
	for _, t := range p.tracks {
		*t = track{at: at}
	}
	p.state, p.since = seeking, p.now
}

// leave ends the player at now. An unfinished stall is counted.
func (p *player) leave(now time.Duration) {
	p.advance(now)
	if p.state == stalled {
		p.stalls = append(p.stalls, interval{p.since, p.now})
	}
	p.state = ended
}
