package live

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"
)

// Limits of epochs. An epoch costs initialisation segments, lines in playlists and a period for
// as long as its segments are in the window.
const (
	mostEpochs = 20               // epochs that may begin at once
	epochEvery = 10 * time.Second // after these, the interval between two epochs
	mostInit   = 8 << 10          // bytes of an initialisation segment
)

var errEpochs = errors.New("the stream begins anew too often")

// epoch is a stretch of the stream from a single input.
type epoch struct {
	Number int           `json:"epoch"`
	Start  time.Duration `json:"start"` // on the stream's clock
	Tracks []Track       `json:"tracks"`
}

// track returns the track of a name, or nil.
func (e *epoch) track(name string) *Track {
	for i := range e.Tracks {
		if e.Tracks[i].Name == name {
			return &e.Tracks[i]
		}
	}
	return nil
}

// check validates an epoch's tracks. The error wraps errTracks.
func (e *epoch) check() error {
	if len(e.Tracks) == 0 || len(e.Tracks) > mostTracks {
		return fmt.Errorf("%w: %d of them", errTracks, len(e.Tracks))
	}
	for i := range e.Tracks {
		t := &e.Tracks[i]
		if e.track(t.Name) != t || !t.named() || t.TimeScale < 1 || t.TimeScale > math.MaxUint32 {
			return fmt.Errorf("%w: %q, %s, %d units a second", errTracks, t.Name, t.Kind, t.TimeScale)
		}
		if len(t.Init) > mostInit {
			return fmt.Errorf("%w: an initialisation segment of %d bytes", errTracks, len(t.Init))
		}
	}
	return nil
}

// share makes e use the equal initialisation segments of the epoch before, to hold each once in
// memory.
func (e *epoch) share(before *epoch) {
	for i := range e.Tracks {
		t := &e.Tracks[i]
		if was := before.track(t.Name); was != nil && bytes.Equal(was.Init, t.Init) {
			t.Init = was.Init
		}
	}
}

// pace bounds how often epochs begin (the generic cell rate algorithm, ITU-T I.371).
type pace struct {
	paid time.Duration // on the stream's clock: all begun epochs are accounted for up to here
}

// take accounts for an epoch at now. At too high a rate the error wraps errEpochs and tells the
// wait.
func (p *pace) take(now time.Duration) error {
	paid := max(p.paid, now)
	if wait := paid - now - (mostEpochs-1)*epochEvery; wait > 0 {
		return fmt.Errorf("%w: once each %v, after %d times: again in %v", errEpochs, epochEvery, mostEpochs, wait.Round(time.Second))
	}
	p.paid = paid + epochEvery
	return nil
}
