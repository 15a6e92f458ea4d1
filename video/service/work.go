package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// work is what is made of an asset, step by step. Each step leaves a file, so that whoever
// comes after a crash goes on behind it:
//
//	source → function's /work → Source, Plan (asset.json)
//	       → jobs/chunk-N, jobs/audio-N, NAME.vtt, sheetN.jpg
//	       → NAME.mp4 → Ready (asset.json); jobs/ and the function's copy go
type work struct {
	*Service
	id  string
	log *slog.Logger

	all, done atomic.Int64 // steps
	mu        sync.Mutex
	warnings  []string
}

// run makes the asset. Its error is why the asset has failed, unless ctx has ended.
func (w *work) run(ctx context.Context) error {
	if err := try(ctx, w.log, func() error { return w.function.give(ctx, w.id, w.library.Path(w.id, sourceFile)) }); err != nil {
		return err
	}
	a := w.library.Get(w.id)
	if a == nil {
		return fs.ErrNotExist
	}
	if a.Plan == nil {
		var source media.Source
		if err := w.job(ctx, "/probe", map[string]string{"source": w.id}, &source, nil); err != nil {
			return err
		}
		plan, err := w.plan(&source, cmp.Or(a.Codec, w.cfg.Codec, media.H264))
		if err != nil {
			return err
		}
		if a, err = w.library.Update(w.id, func(a *asset.Asset) { a.Source, a.Plan = &source, plan }); err != nil {
			return err
		}
	}
	return w.make(ctx, a)
}

// job has the function do a job, in a slot of the service's, for no longer than JobTimeout.
// take, unless nil, takes what follows the answer's head.
func (w *work) job(ctx context.Context, path string, question, head any, take func(rest io.Reader) error) error {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return w.jobInSlot(ctx, path, question, head, take)
}

func (w *work) jobInSlot(ctx context.Context, path string, question, head any, take func(rest io.Reader) error) error {
	return try(ctx, w.log.With("job", path), func() (err error) {
		outside := ctx
		ctx, cancel := context.WithTimeout(ctx, w.cfg.JobTimeout)
		defer cancel()
		defer func() {
			switch {
			case err == nil || outside.Err() != nil:
			case ctx.Err() != nil:
				err = &brokenError{fmt.Sprintf("the transcoder has not answered within %v", w.cfg.JobTimeout)}
			case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
				err = &brokenError{"the transcoder's answer breaks off"}
			}
		}()
		rest, err := w.function.askJSON(ctx, path, question, head)
		if errors.Is(err, os.ErrNotExist) { // the function has lost its /work
			if err := w.function.give(ctx, w.id, w.library.Path(w.id, sourceFile)); err != nil {
				return err
			}
			rest, err = w.function.askJSON(ctx, path, question, head)
		}
		if err != nil {
			return err
		}
		if take != nil {
			err = take(rest)
		}
		return errors.Join(err, rest.Close())
	})
}

// The sizes of what is made.
const (
	segmentSeconds = 4
	mostChunk      = 6  // segments
	leastChunk     = 2  // segments: each chunk may decode some seconds before it for nothing
	mostAudio      = 8  // tracks
	mostText       = 16 // tracks
	mostTextBytes  = 16 << 20
	thumbsWidth    = 160
	thumbsSide     = 10 // columns and rows of a sheet
)

// plan decides what is made of a source, its pictures in a codec.
func (w *work) plan(s *media.Source, codec string) (*asset.Plan, error) {
	if limit := w.cfg.MostDuration.Seconds(); s.Duration > limit {
		return nil, fmt.Errorf("it takes %.0f seconds, more than the %.0f that are allowed", s.Duration, limit)
	}
	p := &asset.Plan{Video: -1, Segment: segmentSeconds}
	var picture *media.Stream
	for i, stream := range s.Streams {
		switch stream.Kind {
		case "video":
			if stream.Width > 0 && stream.Height > 0 && (picture == nil || stream.Default && !picture.Default) {
				picture = &s.Streams[i]
			}
		case "audio":
			if len(p.Audio) < mostAudio && stream.Channels > 0 {
				p.Audio = append(p.Audio, stream.Index)
			}
		case "subtitle":
			if len(p.Text) < mostText {
				p.Text = append(p.Text, stream.Index)
			}
		}
	}
	if picture == nil && len(p.Audio) == 0 {
		return nil, errors.New("there is neither a picture nor sound in it")
	}
	if picture != nil {
		p.Video = picture.Index
		p.Grid.Rate = frameRate(picture.FrameRate)
		rate := float64(p.Grid.Rate.Num) / float64(p.Grid.Rate.Den)
		p.Grid.Segment = max(1, int(math.Round(segmentSeconds*rate)))
		p.Chunk = p.Grid.Segment * chunkSize(s.Duration, w.cfg.Slots)
		p.Rungs = media.In(codec, media.Ladder(picture.Width, picture.Height, rate, w.cfg.Rungs))
		p.Thumbs = max(1, math.Round(s.Duration/120))
	}
	return p, nil
}

// chunkSize is how many segments a chunk of a video of so many seconds has: as many as there
// may be, but no more than keep all slots at work, to the end: each makes as many chunks as
// the others. Of a duration of 0 nothing is known.
func chunkSize(seconds float64, slots int) int {
	segments := int(math.Ceil(seconds / segmentSeconds))
	if segments == 0 {
		return mostChunk
	}
	each := (segments + slots*mostChunk - 1) / (slots * mostChunk) // chunks of a slot
	return max((segments+slots*each-1)/(slots*each), leastChunk)
}

// frameRate is the one that a source's is made into: its own, where it is no more than 60,
// else a half or less of it; 30 where it is not known or no rate of pictures.
func frameRate(f media.Fraction) media.Fraction {
	rate := float64(f.Num) / float64(f.Den)
	if f.Num <= 0 || f.Den <= 0 || rate < 0.1 || rate > 240 {
		return media.Fraction{Num: 30, Den: 1}
	}
	for ; rate > 60.5; rate /= 2 {
		f.Den *= 2
	}
	return f
}

// warn notes what is missing in what is made.
func (w *work) warn(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warnings = append(w.warnings, fmt.Sprintf(format, args...))
}

// step counts one that is done.
func (w *work) step() {
	done := w.done.Add(1)
	w.library.Progress(w.id, &asset.Jobs{Done: int(done), All: int(max(done, w.all.Load()))})
}

// make makes all of the plan.
func (w *work) make(ctx context.Context, a *asset.Asset) error {
	p := a.Plan
	var rate float64
	estimate := 0 // chunks
	if p.Video >= 0 {
		rate = float64(p.Grid.Rate.Num) / float64(p.Grid.Rate.Den)
		estimate = max(1, int(math.Ceil(a.Source.Duration*rate/float64(p.Chunk))))
	}
	thumbs := 0
	if p.Thumbs > 0 {
		thumbs = 1
	}
	w.all.Store(int64(estimate + len(p.Audio) + len(p.Text) + thumbs + 1))
	w.library.Progress(w.id, &asset.Jobs{All: int(w.all.Load())})

	var renditions []*asset.Rendition
	group, ctx := errgroup.WithContext(ctx)
	var chunks []chunked
	if p.Video >= 0 {
		group.Go(contained(func() (err error) {
			chunks, err = w.chunks(ctx, a, estimate)
			return err
		}))
	}
	sounds := make([]*media.Made, len(p.Audio))
	for i, stream := range p.Audio {
		group.Go(contained(func() (err error) {
			sounds[i], err = w.sound(ctx, a, i, stream)
			return err
		}))
	}
	texts := make([]*asset.Rendition, len(p.Text))
	for i, stream := range p.Text {
		group.Go(contained(func() (err error) {
			texts[i], err = w.text(ctx, a, i, stream)
			return err
		}))
	}
	var sheets *asset.Thumbnails
	if p.Thumbs > 0 {
		group.Go(contained(func() (err error) {
			sheets, err = w.thumbs(ctx, a)
			return err
		}))
	}
	if err := group.Wait(); err != nil {
		return err
	}

	frames := 0
	for _, c := range chunks {
		frames += c.Frames
	}
	for i, rung := range p.Rungs {
		r := &asset.Rendition{Name: "v" + rung.Name, Kind: "video", Width: rung.Width, Height: rung.Height, FrameRate: p.Grid.Rate}
		var parts []part
		for n, c := range chunks {
			at := int64(0)
			for _, before := range c.Rungs[:i] {
				at += bytesOf(&before)
			}
			parts = append(parts, part{w.jobFile("chunk", n), at, c.Rungs[i]})
		}
		if err := w.assemble(r, parts); err != nil {
			return err
		}
		renditions = append(renditions, r)
	}
	for i, made := range sounds {
		if made == nil {
			continue
		}
		stream := a.Source.Streams[p.Audio[i]]
		r := &asset.Rendition{Name: fmt.Sprintf("a%d", i), Kind: "audio", SampleRate: 48000, Channels: 2, Language: stream.Language, Title: stream.Title, Default: stream.Default}
		if err := w.assemble(r, []part{{w.jobFile("audio", i), 0, *made}}); err != nil {
			return err
		}
		renditions = append(renditions, r)
	}
	if len(renditions) == 0 {
		return errors.New("nothing of it could be decoded")
	}
	duration := renditions[0].Total()
	for _, r := range texts {
		if r != nil {
			r.Segments[0].Duration = int64(math.Ceil(1000 * duration))
			renditions = append(renditions, r)
		}
	}
	_, err := w.library.Update(w.id, func(a *asset.Asset) {
		a.State, a.Error, a.Jobs, a.Warnings = asset.Ready, "", nil, w.warnings
		a.Made, a.Duration, a.Renditions, a.Thumbnails = asset.NewID(), duration, renditions, sheets
	})
	return err
}

// jobFile is where the answer to a job is kept until all are done.
func (w *work) jobFile(kind string, n int) string {
	return w.library.Path(w.id, jobsDir, fmt.Sprintf("%s-%d", kind, n))
}

// bytesOf is how many bytes what was made has.
func bytesOf(m *media.Made) int64 {
	n := int64(m.Init)
	for _, s := range m.Segments {
		n += int64(s)
	}
	return n
}

// sound makes a track, unless it is there. One that cannot be decoded is left out, if there
// is something else.
func (w *work) sound(ctx context.Context, a *asset.Asset, i, stream int) (*media.Made, error) {
	path := w.jobFile("audio", i)
	made := &media.Made{}
	if _, err := kept(path, made); err != nil {
		err := w.job(ctx, "/sound", media.Sound{Source: w.id, Stream: stream, Segment: a.Plan.Segment, Offset: a.Source.Offset}, made, func(rest io.Reader) error {
			return keep(path, made, rest, bytesOf(made))
		})
		if words := lost(err); words != "" && (a.Plan.Video >= 0 || len(a.Plan.Audio) > 1) {
			w.warn("the sound of stream %d is left out: %s", stream, words)
			made, err = nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the sound of stream %d: %w", stream, err)
		}
	}
	w.step()
	return made, nil
}

// text makes a track of subtitles; one that cannot be is left out.
func (w *work) text(ctx context.Context, a *asset.Asset, i, stream int) (*asset.Rendition, error) {
	name := fmt.Sprintf("t%d", i)
	path := w.library.Path(w.id, name+".vtt")
	err := w.job(ctx, "/text", media.Text{Source: w.id, Stream: stream, Offset: a.Source.Offset}, nil, func(rest io.Reader) error {
		f, err := os.Create(path + ".new")
		if err != nil {
			return err
		}
		n, err := io.Copy(f, io.LimitReader(rest, mostTextBytes+1))
		if n > mostTextBytes {
			err = fmt.Errorf("more than %d bytes of text", mostTextBytes)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		return asset.Commit(path+".new", path)
	})
	w.step()
	if err != nil {
		return nil, w.leaveOut(ctx, fmt.Sprintf("the subtitles of stream %d", stream), err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	of := a.Source.Streams[stream]
	return &asset.Rendition{
		Name: name, Kind: "text", Codec: "wvtt", Language: of.Language, Title: of.Title, Default: of.Default,
		TimeScale: 1000, Segments: []asset.Segment{{Size: info.Size()}},
	}, nil
}

// thumbs makes the sheets of thumbnails; an asset can do without.
func (w *work) thumbs(ctx context.Context, a *asset.Asset) (*asset.Thumbnails, error) {
	q := media.Thumbs{Source: w.id, Stream: a.Plan.Video, Offset: a.Source.Offset, Interval: a.Plan.Thumbs, Width: thumbsWidth, Columns: thumbsSide, Rows: thumbsSide}
	var made media.Sheets
	err := w.job(ctx, "/thumbs", q, &made, func(rest io.Reader) error {
		for i, size := range made.Sheets {
			path := w.library.Path(w.id, fmt.Sprintf("sheet%d.jpg", i))
			f, err := os.Create(path + ".new")
			if err != nil {
				return err
			}
			_, err = io.CopyN(f, rest, int64(size))
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
			if err := asset.Commit(path+".new", path); err != nil {
				return err
			}
		}
		return nil
	})
	w.step()
	if err == nil && (made.Count < 1 || made.Count > len(made.Sheets)*q.Columns*q.Rows || made.Width < 1 || made.Height < 1 || !(made.Interval > 0)) {
		err = fmt.Errorf("%d pictures of %d × %d in %d sheets", made.Count, made.Width, made.Height, len(made.Sheets))
	}
	if err != nil {
		return nil, w.leaveOut(ctx, "the thumbnails", err)
	}
	return &asset.Thumbnails{Width: made.Width, Height: made.Height, Columns: q.Columns, Rows: q.Rows, Count: made.Count, Interval: made.Interval}, nil
}

// leaveOut warns of what an asset can do without, unless the work has ended.
func (w *work) leaveOut(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.warn("%s are left out: %v", what, err)
	return nil
}

// tidy removes what only the work needed.
func (w *work) tidy(ctx context.Context) {
	if err := os.RemoveAll(w.library.Path(w.id, jobsDir)); err != nil {
		w.log.ErrorContext(ctx, "remove the jobs' files", "error", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := w.function.take(ctx, w.id); err != nil {
		w.log.WarnContext(ctx, "the engine keeps a source until the next start", "error", err)
	}
}
