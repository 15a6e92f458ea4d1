package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// work makes an asset step by step. Each step leaves a file, so that after a crash the next
// service continues with the next step:
//
//	source → function's /work → Source, Plan (asset.json)
//	       → jobs/chunk-N, jobs/audio-N, jobs/text-N, jobs/thumbs-0
//	       → NAME.mp4, NAME.vtt, sheetN.jpg → Ready (asset.json); jobs/ and the function's copy go
//
// The files in jobs/ belong to the plan in asset.json: they are deleted before the plan is
// replaced.
type work struct {
	*Service
	id  string
	log *slog.Logger

	all, done atomic.Int64 // steps
	giving    sync.Mutex   // serialises give
	mu        sync.Mutex
	warnings  []string
}

// run makes the asset. Unless ctx has ended, the error is the reason of the asset's failure.
func (w *work) run(ctx context.Context) error {
	if err := w.room(0); err != nil { // before the work makes any file
		return err
	}
	if err := try(ctx, w.log, func() error { return w.give(ctx) }); err != nil {
		return err
	}
	a := w.library.Get(w.id)
	if a == nil {
		return fs.ErrNotExist
	}
	if a.Plan == nil || a.Plan.Most == 0 { // no plan, or a plan by an older version
		w.sweep(a)
		var source media.Source
		if err := w.job(ctx, w.cfg.JobTimeout, "/probe", media.Probe{Source: w.id, Most: w.cfg.MostDuration.Seconds()}, &source, nil); err != nil {
			return err
		}
		if err := checkSource(&source); err != nil {
			return err
		}
		plan, err := w.plan(&source, cmp.Or(a.Codec, w.cfg.Codec, media.H264))
		if err != nil {
			return err
		}
		if a, err = w.library.Update(w.id, func(a *asset.Asset) error {
			a.Source, a.Plan = &source, plan
			return nil
		}); err != nil {
			return err
		}
	}
	return w.make(ctx, a)
}

// give uploads the source to the function, one call at a time: interleaved pieces of two uploads
// would make a source of the right size and the wrong content.
func (w *work) give(ctx context.Context) error {
	w.giving.Lock()
	defer w.giving.Unlock()
	return w.function.give(ctx, w.id, w.library.Path(w.id, sourceFile))
}

// wholeTimeout returns the time limit of a job over the whole source: JobTimeout for each started
// hour of the source, or of MostDuration if the source's duration is unknown.
func (c *Config) wholeTimeout(seconds float64) time.Duration {
	most := c.MostDuration.Seconds()
	if seconds <= 0 || seconds > most {
		seconds = most
	}
	return c.JobTimeout * time.Duration(max(1, math.Ceil(seconds/3600)))
}

// job has the function do a job in one of the service's slots. within limits each try. Unless
// nil, take reads the part of the answer after its head.
func (w *work) job(ctx context.Context, within time.Duration, path string, question, head any, take func(rest io.Reader) error) error {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return w.jobInSlot(ctx, within, path, question, head, take)
}

func (w *work) jobInSlot(ctx context.Context, within time.Duration, path string, question, head any, take func(rest io.Reader) error) error {
	once := func() (err error) {
		outside := ctx
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		defer func() {
			switch {
			case err == nil || outside.Err() != nil:
			case ctx.Err() != nil:
				err = &brokenError{fmt.Sprintf("the transcoder has not answered within %v", within)}
			case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
				err = &brokenError{"the transcoder's answer breaks off"}
			}
		}()
		rest, err := w.function.askJSON(ctx, path, question, head)
		if err != nil {
			return err
		}
		if take != nil {
			err = take(rest)
		}
		return errors.Join(err, rest.Close())
	}
	return try(ctx, w.log.With("job", path), func() error {
		err := once()
		if errors.Is(err, errNoSource) { // the function has lost its /work; a new upload does not count against the job's time
			if err = w.give(ctx); err == nil {
				err = once()
			}
		}
		return err
	})
}

// Sizes of chunks and limits of tracks.
const (
	segmentSeconds = 4
	mostChunk      = 6  // segments
	leastChunk     = 2  // segments; a chunk may decode some seconds before its start in vain
	mostAudio      = 8  // tracks
	mostText       = 16 // tracks
	mostTextBytes  = 16 << 20
	thumbsWidth    = 160
	thumbsSide     = 10 // columns and rows of a sheet
)

// plan plans the renditions of a source, with pictures in codec.
func (w *work) plan(s *media.Source, codec string) (*asset.Plan, error) {
	if limit := w.cfg.MostDuration.Seconds(); s.Duration > limit {
		return nil, fmt.Errorf("it takes %.0f seconds, more than the %.0f that are allowed: fre-video serve --max-duration allows more", s.Duration, limit)
	}
	p := &asset.Plan{Video: -1, Segment: segmentSeconds, Most: w.cfg.MostDuration.Seconds(), Preset: w.cfg.Preset}
	var picture *media.Stream
	if s.Picture >= 0 && s.Streams[s.Picture].Width > 0 && s.Streams[s.Picture].Height > 0 {
		picture = &s.Streams[s.Picture]
	}
	planStreams(p, s)
	if picture == nil && len(p.Audio) == 0 {
		return nil, errors.New("there is neither a picture nor sound in it")
	}
	if len(p.Audio) > 0 && s.Duration > media.MostSound {
		return nil, fmt.Errorf("it takes %.0f seconds, and sound can be made of %d at most: cut it, or take the sound out", s.Duration, media.MostSound)
	}
	if picture != nil {
		p.Video = picture.Index
		p.Grid.Rate = frameRate(picture.FrameRate, picture.Interlaced)
		rate := float64(p.Grid.Rate.Num) / float64(p.Grid.Rate.Den)
		p.Grid.Segment = max(1, int(math.Round(segmentSeconds*rate)))
		p.Chunk = p.Grid.Segment * chunkSize(s.Duration, w.cfg.Slots)
		p.Rungs = media.Coloured(picture.Colour, media.In(codec, media.Ladder(picture.Width, picture.Height, rate, w.cfg.Rungs)))
		p.Thumbs = max(1, math.Round(s.Duration/120))
	}
	return p, nil
}

// planStreams adds the streams of sound and subtitles, up to the limits.
func planStreams(p *asset.Plan, s *media.Source) {
	for _, stream := range s.Streams {
		switch stream.Kind {
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
}

// chunkSize returns the number of segments in a chunk, for a video of a duration in seconds.
// Chunks are as long as allowed, but short enough that all slots get the same number of chunks
// and stay busy to the end. A duration of 0 means unknown.
func chunkSize(seconds float64, slots int) int {
	segments := int(math.Ceil(seconds / segmentSeconds))
	if segments == 0 {
		return mostChunk
	}
	each := (segments + slots*mostChunk - 1) / (slots * mostChunk) // chunks of a slot
	return max((segments+slots*each-1)/(slots*each), leastChunk)
}

// frameRate returns the frame rate of the renditions. Up to 60 a source keeps its rate; a higher
// rate is halved until it is at most 60. An unknown or implausible rate becomes 30. Up to 30.5
// frames per second, an interlaced frame counts as two pictures.
func frameRate(f media.Fraction, interlaced bool) media.Fraction {
	if rate := float64(f.Num) / float64(f.Den); interlaced && rate <= 30.5 {
		f.Num *= 2
	}
	rate := float64(f.Num) / float64(f.Den)
	if f.Num <= 0 || f.Den <= 0 || rate < 0.1 || rate > 240 {
		return media.Fraction{Num: 30, Den: 1}
	}
	for ; rate > 60.5; rate /= 2 {
		f.Den *= 2
	}
	return f
}

// warn records a warning for the asset.
func (w *work) warn(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warnings = append(w.warnings, fmt.Sprintf(format, args...))
}

// step counts a finished job.
func (w *work) step() {
	done := w.done.Add(1)
	w.library.Progress(w.id, &asset.Jobs{Done: int(done), All: int(max(done, w.all.Load()))})
}

// make makes all renditions of the plan.
func (w *work) make(ctx context.Context, a *asset.Asset) error {
	p := a.Plan
	estimate := estimateChunks(p, a.Source.Duration)
	thumbs := 0
	if p.Thumbs > 0 {
		thumbs = 1
	}
	w.all.Store(int64(estimate + len(p.Audio) + len(p.Text) + thumbs + 1))
	w.library.Progress(w.id, &asset.Jobs{All: int(w.all.Load())})

	w.warnOf(a.Source)
	group, ctx := errgroup.WithContext(ctx)
	var chunks []chunked
	if p.Video >= 0 {
		group.Go(contained(w.log, func() (err error) {
			chunks, err = w.chunks(ctx, a, estimate)
			return err
		}))
	}
	sounds := make([]*sounded, len(p.Audio))
	for i, stream := range p.Audio {
		group.Go(contained(w.log, func() (err error) {
			sounds[i], err = w.sound(ctx, a, i, stream)
			return err
		}))
	}
	texts := make([]*texted, len(p.Text))
	for i, stream := range p.Text {
		group.Go(contained(w.log, func() (err error) {
			texts[i], err = w.text(ctx, a, i, stream)
			return err
		}))
	}
	var sheets *drawn
	if p.Thumbs > 0 {
		group.Go(contained(w.log, func() (err error) {
			sheets, err = w.thumbs(ctx, a)
			return err
		}))
	}
	if err := group.Wait(); err != nil {
		return err
	}

	renditions, err := w.assembleVideo(p, chunks)
	if err != nil {
		return err
	}
	audio, err := w.assembleAudio(a, sounds)
	if err != nil {
		return err
	}
	renditions = append(renditions, audio...)
	if len(renditions) == 0 {
		return errors.New("nothing of it could be decoded")
	}
	duration := lasts(renditions)
	w.warnOfCut(p, duration)
	captions, err := w.publishTexts(a, texts, duration)
	if err != nil {
		return err
	}
	renditions = append(renditions, captions...)
	thumbnails, err := w.sheets(sheets)
	if err != nil {
		return err
	}
	_, err = w.library.Update(w.id, func(a *asset.Asset) error {
		a.State, a.Error, a.Jobs, a.Warnings = asset.Ready, "", nil, w.warnings
		a.Made, a.Duration, a.Renditions, a.Thumbnails = asset.NewID(), duration, renditions, thumbnails
		return nil
	})
	return err
}

// estimateChunks returns the number of chunks if the source lasts as long as it says.
func estimateChunks(p *asset.Plan, duration float64) int {
	if p.Video < 0 {
		return 0
	}
	rate := float64(p.Grid.Rate.Num) / float64(p.Grid.Rate.Den)
	return max(1, int(math.Ceil(min(duration, p.Most)*rate/float64(p.Chunk))))
}

// warnOf warns of the source's damage.
func (w *work) warnOf(s *media.Source) {
	if missing := s.Missing; missing > 0 {
		w.warn("the file was cut off: it ends %.0f seconds before it says: send all of it", missing)
	}
	if n := s.Joins; n > 0 {
		w.warn("its clock jumps (%d times): what follows is joined to what comes before, without a gap", n)
	}
	if words := s.Unseen; words != "" {
		w.warn("its pictures are left out: %s", words)
	}
}

// warnOfCut warns if the renditions end at the limit of the plan.
func (w *work) warnOfCut(p *asset.Plan, duration float64) {
	last := 0.1 // seconds
	if p.Video >= 0 {
		last = p.Seconds(1)
	}
	if duration > p.Most-last {
		w.warn("what comes after second %.0f is left out: fre-video serve --max-duration allows more", p.Most)
	}
}

// assembleVideo joins the chunks of each rung.
func (w *work) assembleVideo(p *asset.Plan, chunks []chunked) (renditions []*asset.Rendition, err error) {
	for i, rung := range p.Rungs {
		r := &asset.Rendition{Name: "v" + rung.Name, Kind: "video", Width: rung.Width, Height: rung.Height, FrameRate: p.Grid.Rate, Colour: rung.Colour}
		var parts []part
		for n, c := range chunks {
			at := int64(0)
			for _, before := range c.Rungs[:i] {
				at += bytesOf(&before)
			}
			parts = append(parts, part{w.jobFile("chunk", n), at, c.Rungs[i]})
		}
		if err := w.assemble(r, parts); err != nil {
			return nil, err
		}
		renditions = append(renditions, r)
	}
	return renditions, nil
}

// assembleAudio makes a rendition of each sound that could be decoded.
func (w *work) assembleAudio(a *asset.Asset, sounds []*sounded) (renditions []*asset.Rendition, err error) {
	for i, made := range sounds {
		if made.Lost != "" {
			w.warn("the sound of stream %d is left out: %s", a.Plan.Audio[i], made.Lost)
			continue
		}
		stream := a.Source.Streams[a.Plan.Audio[i]]
		r := &asset.Rendition{Name: fmt.Sprintf("a%d", i), Kind: "audio", SampleRate: 48000, Channels: 2, Language: stream.Language, Title: stream.Title, Default: stream.Default}
		if err := w.assemble(r, []part{{w.jobFile("audio", i), 0, made.Made}}); err != nil {
			return nil, err
		}
		renditions = append(renditions, r)
	}
	return renditions, nil
}

// publishTexts makes a rendition of each subtitle that could be read.
func (w *work) publishTexts(a *asset.Asset, texts []*texted, duration float64) (renditions []*asset.Rendition, err error) {
	for i, made := range texts {
		if made.Lost != "" {
			w.warn("the subtitles of stream %d are left out: %s", a.Plan.Text[i], made.Lost)
			continue
		}
		stream := a.Source.Streams[a.Plan.Text[i]]
		r := &asset.Rendition{
			Name: fmt.Sprintf("t%d", i), Kind: "text", Codec: "wvtt", Language: stream.Language, Title: stream.Title, Default: stream.Default,
			TimeScale: 1000, Segments: []asset.Segment{{Size: made.Size, Duration: int64(math.Ceil(1000 * duration))}},
		}
		if err := w.publish(r.Name+".vtt", w.jobFile("text", i), 0, made.Size); err != nil {
			return nil, err
		}
		renditions = append(renditions, r)
	}
	return renditions, nil
}

// lasts returns an asset's duration in seconds: its longest track, because DASH players stop at
// the end stated in the manifest. The padding of the last sound frame does not count.
func lasts(renditions []*asset.Rendition) float64 {
	const filled = 0.05
	longest := renditions[0].Lasts()
	for _, r := range renditions[1:] {
		if d := r.Lasts(); d > longest+filled {
			longest = d
		}
	}
	return longest
}

// The heads of the files of sound, subtitles and thumbnails: the result, or the reason why it
// could not be made (Lost).
type (
	sounded struct {
		media.Made
		Lost string `json:"lost,omitempty"`
	}
	texted struct {
		Size int64  `json:"size"`
		Lost string `json:"lost,omitempty"`
	}
	drawn struct {
		media.Sheets
		Lost string `json:"lost,omitempty"`
	}
)

// jobFile returns the path of a job's answer. The file stays until the asset is ready.
func (w *work) jobFile(kind string, n int) string {
	return w.library.Path(w.id, jobsDir, fmt.Sprintf("%s-%d", kind, n))
}

// bytesOf returns the size of a rendition's part in bytes.
func bytesOf(m *media.Made) int64 {
	n := int64(m.Init)
	for _, s := range m.Segments {
		n += int64(s)
	}
	return n
}

// sound makes a track of sound, unless its file exists. A track that cannot be decoded is left
// out, if the asset has any other track.
func (w *work) sound(ctx context.Context, a *asset.Asset, i, stream int) (*sounded, error) {
	file := w.jobFile("audio", i)
	made := &sounded{}
	if _, err := kept(file, made); err != nil {
		q := media.Sound{Source: w.id, Stream: stream, Segment: a.Plan.Segment, Offset: a.Source.Offset, Joined: a.Source.Joins > 0, Most: a.Plan.Most}
		err := w.job(ctx, w.cfg.wholeTimeout(a.Source.Duration), "/sound", q, &made.Made, func(rest io.Reader) error {
			if err := checkMade(&made.Made, 1, mostSegments(q.Most, q.Segment)); err != nil {
				return err
			}
			return w.keep(file, made, rest, bytesOf(&made.Made))
		})
		if words := lost(err); words != "" && (a.Plan.Video >= 0 || len(a.Plan.Audio) > 1) {
			*made = sounded{Lost: words}
			err = w.keep(file, made, nil, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("the sound of stream %d: %w", stream, err)
		}
	}
	w.step()
	return made, nil
}

// text makes a track of subtitles, unless its file exists. A track that cannot be made is left
// out.
func (w *work) text(ctx context.Context, a *asset.Asset, i, stream int) (*texted, error) {
	file := w.jobFile("text", i)
	made := &texted{}
	if _, err := kept(file, made); err != nil {
		err := w.job(ctx, w.cfg.wholeTimeout(a.Source.Duration), "/text", media.Text{Source: w.id, Stream: stream, Offset: a.Source.Offset, Joined: a.Source.Joins > 0}, nil, func(rest io.Reader) error {
			b, err := io.ReadAll(io.LimitReader(rest, mostTextBytes+1))
			if len(b) > mostTextBytes {
				err = &refusedError{fmt.Sprintf("more than %d bytes of text", mostTextBytes)}
			}
			if err != nil {
				return err
			}
			made.Size = int64(len(b))
			return w.keep(file, made, bytes.NewReader(b), made.Size)
		})
		if words := lost(err); words != "" {
			*made = texted{Lost: words}
			err = w.keep(file, made, nil, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("the subtitles of stream %d: %w", stream, err)
		}
	}
	w.step()
	return made, nil
}

// thumbs makes the sheets of thumbnails, unless their file exists. Without them the asset still
// becomes ready.
func (w *work) thumbs(ctx context.Context, a *asset.Asset) (*drawn, error) {
	file := w.jobFile("thumbs", 0)
	made := &drawn{}
	if _, err := kept(file, made); err != nil {
		q := media.Thumbs{Source: w.id, Stream: a.Plan.Video, Offset: a.Source.Offset, Joined: a.Source.Joins > 0, Interval: a.Plan.Thumbs, Width: thumbsWidth, Columns: thumbsSide, Rows: thumbsSide, Most: a.Plan.Most}
		err := w.job(ctx, w.cfg.wholeTimeout(a.Source.Duration), "/thumbs", q, &made.Sheets, func(rest io.Reader) error {
			if err := checkSheets(&made.Sheets, &q); err != nil {
				return err
			}
			size := int64(0)
			for _, n := range made.Sheets.Sheets {
				size += int64(n)
			}
			return w.keep(file, made, rest, size)
		})
		if words := lost(err); words != "" {
			*made = drawn{Lost: words}
			err = w.keep(file, made, nil, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("the thumbnails: %w", err)
		}
	}
	w.step()
	return made, nil
}

// sheets writes the files of the thumbnails. The result is nil without thumbnails.
func (w *work) sheets(made *drawn) (*asset.Thumbnails, error) {
	if made == nil {
		return nil, nil
	}
	if made.Lost != "" {
		w.warn("the thumbnails are left out: %s", made.Lost)
		return nil, nil
	}
	at := int64(0)
	for i, n := range made.Sheets.Sheets {
		if err := w.publish(fmt.Sprintf("sheet%d.jpg", i), w.jobFile("thumbs", 0), at, int64(n)); err != nil {
			return nil, err
		}
		at += int64(n)
	}
	return &asset.Thumbnails{Width: made.Width, Height: made.Height, Columns: thumbsSide, Rows: thumbsSide, Count: made.Count, Interval: made.Interval}, nil
}
