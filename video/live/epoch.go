package live

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"
)

// Limits of epochs. Each has initialisation segments, lines in playlists and a period, for as
// long as its segments are in the window.
const (
	mostEpochs = 20               // that may begin at once
	epochEvery = 10 * time.Second // after which one more may
	mostInit   = 8 << 10          // bytes of an initialisation segment
)

var errEpochs = errors.New("the stream begins anew too often")

// epoch is a stretch of the stream out of one input.
type epoch struct {
	Number int           `json:"epoch"`
	Start  time.Duration `json:"start"` // on the stream's clock
	Tracks []Track       `json:"tracks"`
}

// track is that of a name, nil if there is none.
func (e *epoch) track(name string) *Track {
	for i := range e.Tracks {
		if e.Tracks[i].Name == name {
			return &e.Tracks[i]
		}
	}
	return nil
}

// check says what is wrong with an epoch's tracks.
func (e *epoch) check() error {
	if len(e.Tracks) == 0 || len(e.Tracks) > mostTracks {
		return fmt.Errorf("%w: %d of them", errTracks, len(e.Tracks))
	}
	for i := range e.Tracks {
		t := &e.Tracks[i]
		if e.track(t.Name) != t || t.Name != filepath.Base(t.Name) || !filepath.IsLocal(t.Name) || t.TimeScale < 1 || t.TimeScale > math.MaxUint32 || t.Kind != "video" && t.Kind != "audio" {
			return fmt.Errorf("%w: %q, %s, %d units a second", errTracks, t.Name, t.Kind, t.TimeScale)
		}
		if len(t.Init) > mostInit {
			return fmt.Errorf("%w: an initialisation segment of %d bytes", errTracks, len(t.Init))
		}
	}
	return nil
}

// share has an epoch share the initialisation segments of the one before that are the same.
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
	paid time.Duration // on the stream's clock, up to when those that have begun are accounted for
}

// take takes one epoch that begins now, or says when there may be one.
func (p *pace) take(now time.Duration) error {
	paid := max(p.paid, now)
	if wait := paid - now - (mostEpochs-1)*epochEvery; wait > 0 {
		return fmt.Errorf("%w: once each %v, after %d times: again in %v", errEpochs, epochEvery, mostEpochs, wait.Round(time.Second))
	}
	p.paid = paid + epochEvery
	return nil
}
