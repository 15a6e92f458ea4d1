package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/asset"
)

// loop plays an asset until ctx ends. After an error the loop starts again, after a growing
// pause.
func (v *Server) loop(ctx context.Context, c *channel) {
	wait := time.Second
	for ctx.Err() == nil {
		began := v.cfg.Now()
		release, err := c.claim(ctx, "", func() {})
		if err != nil {
			return
		}
		err = v.play(ctx, c)
		if ctx.Err() != nil {
			release(nil)
			return
		}
		release(err)
		v.cfg.Log.WarnContext(ctx, "a loop was interrupted", "stream", c.Name, "asset", c.Loop, "error", err)
		if v.cfg.Now().Sub(began) > time.Minute {
			wait = time.Second
		}
		if sleep(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, 30*time.Second)
	}
}

// sleep waits for d. The error is ctx's if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reel is a played track of an asset.
type reel struct {
	of      *asset.Rendition
	file    *os.File
	trex    *mp4.TrexBox
	next    int   // index of the next segment
	round   int64 // completed rounds
	samples []Sample
}

// play plays an asset in real time, over and over: all pictures, with key frames at equal times,
// and all sound. play returns when ctx ends or the asset cannot be read.
func (v *Server) play(ctx context.Context, c *channel) (err error) {
	a := v.cfg.Library.Get(c.Loop)
	if a == nil || a.State != asset.Ready {
		return fmt.Errorf("asset %s is not there, or not ready", c.Loop)
	}
	var reels []*reel
	defer func() {
		for _, r := range reels {
			err = errors.Join(err, r.file.Close())
		}
	}()
	var tracks []Track
	length := 0.0 // of a round, in seconds: the longest picture track
	for _, of := range a.Renditions {
		if !inLoop(of) {
			continue
		}
		r, init, err := openReel(of, v.cfg.Library.Path(a.ID, of.Name+".mp4"))
		if err != nil {
			return err
		}
		reels = append(reels, r)
		tracks = append(tracks, r.track(init))
		if of.Kind == "video" || len(a.Of("video")) == 0 {
			length = max(length, of.Total())
		}
	}
	if err := c.Begin(tracks); err != nil {
		return err
	}
	return v.run(ctx, c, reels, length)
}

// run writes the samples of the reels at their times. The first sample is due now.
func (v *Server) run(ctx context.Context, c *channel, reels []*reel, length float64) error {
	zero := v.cfg.Now()
	for {
		first, at, err := earliest(reels, length)
		if err != nil {
			return fmt.Errorf("%s of asset %s: %w", reels[first].of.Name, c.Loop, err)
		}
		if err := v.await(ctx, zero.Add(at)); err != nil {
			return err
		}
		if v.cfg.Library.Get(c.Loop) == nil {
			return fmt.Errorf("asset %s was removed", c.Loop)
		}
		r := reels[first]
		if err := c.Write(first, r.samples[0]); err != nil {
			return err
		}
		r.samples = r.samples[1:]
	}
}

// inLoop reports whether a loop plays the rendition.
func inLoop(of *asset.Rendition) bool { return of.Kind != "text" && len(of.Segments) > 0 }

// openReel opens a rendition's file and returns its initialisation segment.
func openReel(of *asset.Rendition, path string) (r *reel, init []byte, err error) {
	r = &reel{of: of}
	if r.file, err = os.Open(path); err != nil {
		return nil, nil, err
	}
	init = make([]byte, of.Init)
	if _, err = r.file.ReadAt(init, 0); err != nil {
		err = fmt.Errorf("%s: %w", filepath.Base(path), err)
	} else {
		r.trex, err = trackOf(init)
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.file.Close())
	}
	return r, init, nil
}

// track describes the reel as a track of a live stream.
func (r *reel) track(init []byte) Track {
	of := r.of
	t := Track{TimeScale: int64(of.TimeScale), Init: init, LiveTrack: asset.LiveTrack{
		Name: of.Name, Kind: of.Kind, Codec: of.Codec, BitRate: of.BitRate, Width: of.Width, Height: of.Height, SampleRate: of.SampleRate, Channels: of.Channels, Language: of.Language,
	}}
	if of.FrameRate.Den > 0 {
		t.FrameRate = float64(of.FrameRate.Num) / float64(of.FrameRate.Den)
	}
	return t
}

// earliest returns the index of the reel with the sample to decode first, and the sample's time. At
// equal times the first reel wins. If a reel cannot be read, earliest returns its index.
func earliest(reels []*reel, length float64) (first int, at time.Duration, err error) {
	first = -1
	for i, r := range reels {
		if err := r.fill(length); err != nil {
			return i, 0, err
		}
		if t := units(r.samples[0].Decode, int64(r.of.TimeScale)); first < 0 || t < at {
			first, at = i, t
		}
	}
	return first, at, nil
}

// await waits for the time of a sample.
func (v *Server) await(ctx context.Context, at time.Time) error {
	if wait := at.Sub(v.cfg.Now()); wait > 5*time.Millisecond {
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	} else if wait < -5*time.Second { // the machine was suspended
		return errors.New("the clock has jumped")
	}
	return ctx.Err()
}

// origin returns the start of the current round on the loop's clock, in the track's time scale.
func (r *reel) origin(length float64) int64 {
	return int64(math.Round(float64(r.round) * length * float64(r.of.TimeScale)))
}

// trackOf returns the trex box of an initialisation segment with a single track.
func trackOf(init []byte) (*mp4.TrexBox, error) {
	f, err := mp4.DecodeFile(bytes.NewReader(init))
	if err != nil {
		return nil, err
	}
	if f.Init == nil || f.Init.Moov == nil || f.Init.Moov.Mvex == nil || f.Init.Moov.Mvex.Trex == nil || f.Init.Moov.Mvex.Trex.TrackID != 1 {
		return nil, errors.New("no initialisation segment of one track")
	}
	return f.Init.Moov.Mvex.Trex, nil
}

// fill reads the next segment once all samples of the last segment are taken. Samples beyond
// length, in seconds, are dropped.
func (r *reel) fill(length float64) error {
	for tries := 0; len(r.samples) == 0; tries++ {
		if tries > len(r.of.Segments) {
			return errors.New("no segment has samples")
		}
		if r.next == len(r.of.Segments) {
			r.next = 0
			r.round++
		}
		of := &r.of.Segments[r.next]
		r.next++
		f, err := mp4.DecodeFile(io.NewSectionReader(r.file, of.Offset, of.Size))
		if err != nil {
			return err
		}
		limit := int64(length * float64(r.of.TimeScale))
		for _, s := range f.Segments {
			for _, fragment := range s.Fragments {
				samples, err := fragment.GetFullSamples(r.trex)
				if err != nil {
					return err
				}
				for _, s := range samples {
					if int64(s.DecodeTime) >= limit {
						continue
					}
					r.samples = append(r.samples, Sample{
						Decode: int64(s.DecodeTime) + r.origin(length), Offset: int64(s.CompositionTimeOffset), Key: mp4.IsSyncSampleFlags(s.Flags), Data: s.Data,
					})
				}
			}
		}
	}
	return nil
}
