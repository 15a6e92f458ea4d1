package service

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

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
