package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

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

// pieces holds the heads of the jobs' files.
type pieces struct {
	chunks []chunked
	sounds []*sounded
	texts  []*texted
	sheets *drawn // nil without thumbnails
}

// make makes all renditions of the plan.
func (w *work) make(ctx context.Context, a *asset.Asset) error {
	w.warnOf(a.Source)
	made, err := w.jobs(ctx, a)
	if err != nil {
		return err
	}
	return w.publishAll(a, made)
}

// jobs has the function do all jobs of the plan.
func (w *work) jobs(ctx context.Context, a *asset.Asset) (*pieces, error) {
	p := a.Plan
	estimate := estimateChunks(p, a.Source.Duration)
	thumbs := 0
	if p.Thumbs > 0 {
		thumbs = 1
	}
	w.expect(estimate + len(p.Audio) + len(p.Text) + thumbs + 1)
	group, ctx := errgroup.WithContext(ctx)
	made := &pieces{sounds: make([]*sounded, len(p.Audio)), texts: make([]*texted, len(p.Text))}
	if p.Video >= 0 {
		group.Go(contained(w.log, func() (err error) {
			made.chunks, err = w.chunks(ctx, a, estimate)
			return err
		}))
	}
	for i, stream := range p.Audio {
		group.Go(contained(w.log, func() (err error) {
			made.sounds[i], err = w.sound(ctx, a, i, stream)
			return err
		}))
	}
	for i, stream := range p.Text {
		group.Go(contained(w.log, func() (err error) {
			made.texts[i], err = w.text(ctx, a, i, stream)
			return err
		}))
	}
	if p.Thumbs > 0 {
		group.Go(contained(w.log, func() (err error) {
			made.sheets, err = w.thumbs(ctx, a)
			return err
		}))
	}
	return made, group.Wait()
}

// publishAll writes the files of all renditions, and makes the asset ready.
func (w *work) publishAll(a *asset.Asset, made *pieces) error {
	p := a.Plan
	renditions, err := w.assembleVideo(p, made.chunks)
	if err != nil {
		return err
	}
	audio, err := w.assembleAudio(a, made.sounds)
	if err != nil {
		return err
	}
	renditions = append(renditions, audio...)
	if len(renditions) == 0 {
		return errors.New("nothing of it could be decoded")
	}
	duration := lasts(renditions)
	w.warnOfCut(p, duration)
	captions, err := w.publishTexts(a, made.texts, duration)
	if err != nil {
		return err
	}
	renditions = append(renditions, captions...)
	thumbnails, err := w.sheets(made.sheets)
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
