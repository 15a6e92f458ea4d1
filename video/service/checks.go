package service

import (
	"fmt"
	"math"

	"github.com/fre-engine/fre/video/media"
)

// The checks below run before the service makes or keeps anything by an answer: an attacker in
// control of a sandbox answers any number. An answer beyond the question is refused.

// mostAnswer is the most bytes after the head of an answer: a sandbox holds the answer in memory.
const mostAnswer = 2 << 30

// checkSource checks the answer to a probe.
func checkSource(s *media.Source) error {
	if len(s.Streams) > media.MostStreams {
		return &refusedError{fmt.Sprintf("it is said to have %d streams; %d can be", len(s.Streams), media.MostStreams)}
	}
	for i, stream := range s.Streams {
		if stream.Index != i {
			return &refusedError{fmt.Sprintf("stream %d is said to be number %d", i, stream.Index)}
		}
	}
	if s.Picture < -1 || s.Picture >= len(s.Streams) || s.Picture >= 0 && s.Streams[s.Picture].Kind != "video" {
		return &refusedError{fmt.Sprintf("its pictures are said to be those of stream %d, which has none", s.Picture)}
	}
	if s.Duration < 0 {
		return &refusedError{fmt.Sprintf("it is said to take %g seconds", s.Duration)}
	}
	return nil
}

// checkMade checks the head of a rendition. The number of segments must be from least to most.
func checkMade(m *media.Made, least, most int) error {
	if len(m.Segments) < least || len(m.Segments) > most {
		return &brokenError{fmt.Sprintf("the transcoder announces %d segments; there can be %d to %d", len(m.Segments), least, most)}
	}
	if m.Init < 0 || m.Init > mostAnswer {
		return &brokenError{fmt.Sprintf("the transcoder announces %d bytes", m.Init)}
	}
	for _, n := range m.Segments {
		if n < 1 || n > mostAnswer {
			return &brokenError{fmt.Sprintf("the transcoder announces a segment of %d bytes", n)}
		}
	}
	return nil
}

// mostSegments returns the limit of segments for sound of most seconds. The slack covers the last
// frame, which is whole, however long.
func mostSegments(most, segment float64) int { return int(math.Ceil(most/segment)) + 16 }

// checkChunk checks the answer to a chunk job.
func checkChunk(c *media.Chunked, q *media.Chunk) error {
	all := q.To - q.From
	if c.Frames < 0 || c.Frames > all || len(c.Rungs) > len(q.Rungs) || c.Frames > 0 && len(c.Rungs) < len(q.Rungs) {
		return &brokenError{fmt.Sprintf("%d frames in %d rungs, of %d in %d", c.Frames, len(c.Rungs), all, len(q.Rungs))}
	}
	for i := range c.Rungs {
		if err := checkMade(&c.Rungs[i], min(1, c.Frames), (all+q.Grid.Segment-1)/q.Grid.Segment); err != nil {
			return err
		}
	}
	return nil
}

// spread reports whether the interval of the pictures is possible.
func spread(s *media.Sheets, q *media.Thumbs) bool {
	return !(s.Interval < q.Interval || s.Interval > max(q.Interval, q.Most) || float64(s.Count-1)*s.Interval > q.Most)
}

// checkSheets checks the answer to a thumbnails job.
func checkSheets(s *media.Sheets, q *media.Thumbs) error {
	each := q.Columns * q.Rows
	counted := s.Count >= 1 && s.Count <= media.MostThumbs && len(s.Sheets) == (s.Count+each-1)/each
	if !counted || s.Width != q.Width || s.Height < 1 || s.Height > 4*q.Width || !spread(s, q) {
		return &refusedError{fmt.Sprintf("%d pictures of %d × %d in %d sheets, one each %g seconds", s.Count, s.Width, s.Height, len(s.Sheets), s.Interval)}
	}
	for _, n := range s.Sheets {
		if n < 1 || n > mostAnswer {
			return &refusedError{fmt.Sprintf("a sheet of %d bytes", n)}
		}
	}
	return nil
}
