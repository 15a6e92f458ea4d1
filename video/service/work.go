package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"

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

	giving sync.Mutex // serialises give

	mu       sync.Mutex
	expected int // steps
	finished int // steps
	warnings []string
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

// warn records a warning for the asset.
func (w *work) warn(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warnings = append(w.warnings, fmt.Sprintf(format, args...))
}

// expect announces the number of steps.
func (w *work) expect(steps int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expected = steps
	w.library.Progress(w.id, &asset.Jobs{All: steps})
}

// step counts a finished job.
func (w *work) step() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished++
	w.library.Progress(w.id, &asset.Jobs{Done: w.finished, All: max(w.finished, w.expected)})
}

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
