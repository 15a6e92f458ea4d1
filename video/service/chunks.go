package service

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// chunked is the head of a chunk's file.
type chunked struct {
	media.Chunked
	Lost string `json:"lost,omitempty"` // why the source's pictures could not be decoded: the chunk is black
}

func (c *chunked) black() bool { return c.Lost != "" && c.Frames > 0 }

// chunks makes the video, chunk after chunk in as many slots as are free, until the source ends.
// It returns the heads of the answers, and an error if more than half of the chunks are black.
func (w *work) chunks(ctx context.Context, a *asset.Asset, estimate int) ([]chunked, error) {
	var mu sync.Mutex
	heads := map[int]chunked{}
	ended := false // a chunk was not full
	parts := (a.Plan.Frames() + a.Plan.Chunk - 1) / a.Plan.Chunk
	black := 0
	group, running := errgroup.WithContext(ctx)
	for n := 0; ; n++ {
		if n >= estimate { // the source may end anywhere from here on: make one chunk at a time
			if err := group.Wait(); err != nil {
				return nil, err
			}
			group, running = errgroup.WithContext(ctx)
		}
		mu.Lock()
		over := ended
		mu.Unlock()
		if over || n == parts {
			break
		}
		select {
		case w.slots <- struct{}{}:
		case <-running.Done():
			if err := group.Wait(); err != nil {
				return nil, err
			}
			return nil, context.Cause(ctx)
		}
		group.Go(contained(w.log, func() error {
			defer func() { <-w.slots }()
			head, err := w.chunk(running, a, n)
			if err != nil {
				return err
			}
			w.step()
			mu.Lock()
			defer mu.Unlock()
			heads[n] = *head
			ended = ended || head.Frames < a.Plan.Chunk
			if head.black() {
				black++
			}
			if 2*black > max(estimate, len(heads)) {
				return mostlyBlack(black, head.Lost)
			}
			return nil
		}))
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return w.whole(a.Plan, heads)
}

// whole returns the chunks with frames, in order, and warns of chunks that are black.
func (w *work) whole(p *asset.Plan, heads map[int]chunked) ([]chunked, error) {
	var whole []chunked
	black, words := 0, ""
	for n := 0; ; n++ {
		head := heads[n]
		if head.Frames > 0 {
			whole = append(whole, head)
		}
		if head.black() {
			black++
		}
		if head.Lost != "" {
			words = head.Lost
			w.blackened(p, n, head)
		}
		if head.Frames < p.Chunk {
			break
		}
	}
	if 2*black > len(whole) {
		return nil, mostlyBlack(black, words)
	}
	return whole, nil
}

func mostlyBlack(n int, words string) error {
	return fmt.Errorf("%d of its parts, more than half, could not be decoded, the last of them: %s", n, words)
}

// blackened warns of a black chunk n, or of a chunk lost at the end of the source.
func (w *work) blackened(p *asset.Plan, n int, head chunked) {
	from := p.Seconds(n * p.Chunk)
	if head.Frames == 0 {
		w.warn("from second %.0f on nothing could be decoded: %s", from, head.Lost)
		return
	}
	w.warn("seconds %.0f to %.0f could not be decoded: black instead: %s", from, p.Seconds(n*p.Chunk+head.Frames), head.Lost)
}

// chunk makes chunk n, unless its file exists. A sandbox has one core, so the encoder gets one
// thread. If every try fails, the chunk becomes black, up to the stated end of the source. The
// first chunk never becomes black: at this point nothing proves that the source can be decoded at
// all.
func (w *work) chunk(ctx context.Context, a *asset.Asset, n int) (*chunked, error) {
	path := w.jobFile("chunk", n)
	head := &chunked{}
	if _, err := kept(path, head); err == nil {
		return head, nil
	}
	p := a.Plan
	q := media.Chunk{Source: w.id, Stream: p.Video, Grid: p.Grid, From: n * p.Chunk, To: min((n+1)*p.Chunk, p.Frames()), Offset: a.Source.Offset, Joined: a.Source.Joins > 0, Rungs: p.Rungs, Preset: p.Preset, Threads: 1}
	ask := func() error {
		return w.jobInSlot(ctx, w.cfg.JobTimeout, "/chunk", q, &head.Chunked, func(rest io.Reader) error {
			if err := checkChunk(&head.Chunked, &q); err != nil {
				return err
			}
			size := int64(0)
			for i := range head.Rungs {
				size += bytesOf(&head.Rungs[i])
			}
			return w.keep(path, head, rest, size)
		})
	}
	err := ask()
	if words := lost(err); words != "" && n > 0 {
		w.log.WarnContext(ctx, "a chunk is made black", "chunk", n, "error", err)
		*head = chunked{Lost: words}
		q.Blank, q.To = true, min(q.To, int(math.Round(a.Source.Duration/p.Seconds(1))))
		if q.To <= q.From {
			err = w.keep(path, head, nil, 0)
		} else {
			err = ask()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("from second %.0f on: %w", p.Seconds(q.From), err)
	}
	return head, nil
}
