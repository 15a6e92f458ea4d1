package live

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// soundGroup names the group of all sound tracks.
const soundGroup = "audio"

// skipFrom is the distance from a playlist's end beyond which a delta update skips segments: six
// target durations (RFC 8216bis section 4.4.3.8).
const skipFrom = 6 * segmentMost

// writeSound writes the entry of the sound track at index i.
func writeSound(b *bytes.Buffer, i int, t *Track) {
	name, language := fmt.Sprintf("Track %d", i+1), ""
	if t.Language != "" && t.Language != "und" {
		name, language = t.Language, fmt.Sprintf(",LANGUAGE=%q", t.Language)
	}
	first := "NO"
	if i == 0 {
		first = "YES"
	}
	fmt.Fprintf(b, "#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=%q,NAME=%q%s,DEFAULT=%s,AUTOSELECT=YES,CHANNELS=\"%d\",URI=\"%s.m3u8\"\n", soundGroup, name, language, first, max(t.Channels, 1), t.Name)
}

// kinds returns the tracks of pictures, the highest first, and of sound.
func (e *epoch) kinds() (pictures, sounds []*Track) {
	for i := range e.Tracks {
		if t := &e.Tracks[i]; t.Kind == "video" {
			pictures = append(pictures, t)
		} else {
			sounds = append(sounds, t)
		}
	}
	slices.SortStableFunc(pictures, func(a, b *Track) int { return b.Height - a.Height })
	return pictures, sounds
}

// masterLocked returns the master playlist of the current epoch, with tracks at TRACK.m3u8. The
// result is nil until each track has a listed segment.
func (s *Stream) masterLocked() []byte {
	if s.current == nil {
		return nil
	}
	for i := range s.current.Tracks {
		if !s.rows[s.current.Tracks[i].Name].playable() {
			return nil
		}
	}
	var b bytes.Buffer
	b.WriteString("#EXTM3U\n#EXT-X-VERSION:9\n")
	pictures, sounds := s.current.kinds()
	var loudest int64
	codec := ""
	if len(pictures) > 0 {
		for i, t := range sounds {
			_, peak := s.ratesLocked(t)
			loudest, codec = max(loudest, peak), t.Codec
			writeSound(&b, i, t)
		}
	} else {
		pictures = sounds
	}
	for _, t := range pictures {
		average, peak := s.ratesLocked(t)
		writeVariant(&b, t, peak+loudest, average+loudest, codec)
	}
	return b.Bytes()
}

// writeVariant writes the entry of a track. codec is the codec of the sound that plays with the
// track, or empty.
func writeVariant(b *bytes.Buffer, t *Track, peak, average int64, codec string) {
	codecs := t.Codec
	if codec != "" {
		codecs += "," + codec
	}
	fmt.Fprintf(b, "#EXT-X-STREAM-INF:BANDWIDTH=%d,AVERAGE-BANDWIDTH=%d,CODECS=%q", peak, average, codecs)
	if t.Width > 0 {
		fmt.Fprintf(b, ",RESOLUTION=%dx%d", t.Width, t.Height)
	}
	if t.FrameRate > 0 {
		fmt.Fprintf(b, ",FRAME-RATE=%.3f", t.FrameRate)
	}
	if codec != "" {
		fmt.Fprintf(b, ",AUDIO=%q", soundGroup)
	}
	fmt.Fprintf(b, "\n%s.m3u8\n", t.Name)
}

// ratesLocked returns a track's bits per second: the average and the peak over segments of the
// current epoch.
func (s *Stream) ratesLocked(t *Track) (average, peak int64) {
	var bits int64
	var seconds float64
	for _, of := range s.rows[t.Name].segments {
		if of.epoch == s.current && of.seconds() > .5 {
			bits += 8 * of.size
			seconds += of.seconds()
			peak = max(peak, int64(float64(8*of.size)/of.seconds()))
		}
	}
	if seconds == 0 {
		average = t.BitRate
		if average == 0 {
			average = map[string]int64{"video": 2_000_000, "audio": 128_000}[t.Kind]
		}
		return average, average
	}
	return int64(float64(bits) / seconds), peak
}

// mediaLocked returns a track's media playlist, or nil before the first finished segment. skip
// makes the playlist a delta update, without the older segments.
func (s *Stream) mediaLocked(name string, skip bool) []byte {
	r := s.rows[name]
	if !r.playable() {
		return nil
	}
	all := slices.Clone(r.segments[r.listed:])
	if r.open != nil && len(r.open.parts) > 0 {
		all = append(all, r.open)
	}
	var b bytes.Buffer
	independent, target := survey(all)
	fmt.Fprintf(&b, "#EXTM3U\n#EXT-X-VERSION:9\n#EXT-X-TARGETDURATION:%d\n", int(segmentMost.Seconds()))
	fmt.Fprintf(&b, "#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK=%.3f,CAN-SKIP-UNTIL=%.1f,HOLD-BACK=%.1f\n",
		3*target.Seconds(), skipFrom.Seconds(), 3*segmentMost.Seconds())
	fmt.Fprintf(&b, "#EXT-X-PART-INF:PART-TARGET=%.3f\n#EXT-X-MEDIA-SEQUENCE:%d\n#EXT-X-DISCONTINUITY-SEQUENCE:%d\n", target.Seconds(), all[0].number, all[0].epoch.Number)
	if independent {
		b.WriteString("#EXT-X-INDEPENDENT-SEGMENTS\n")
	}
	from := 0
	if skip {
		if from = skippable(all); from > 0 {
			fmt.Fprintf(&b, "#EXT-X-SKIP:SKIPPED-SEGMENTS=%d\n", from)
		}
	}
	s.writeSegments(&b, all, from, r.open)
	s.hint(&b, name, r)
	if s.flowing {
		s.reportLocked(&b, name)
	}
	return b.Bytes()
}

// writeSegments writes the segments from an index on. All but open are finished.
func (s *Stream) writeSegments(b *bytes.Buffer, all []*segment, from int, open *segment) {
	end := all[len(all)-1].end()
	for i := from; i < len(all); i++ {
		of := all[i]
		if i > 0 {
			for range of.epoch.Number - all[i-1].epoch.Number { // a tag for each epoch, even if the epoch has no segment of this track
				b.WriteString("#EXT-X-DISCONTINUITY\n")
			}
		}
		if i == from || of.epoch != all[i-1].epoch {
			fmt.Fprintf(b, "#EXT-X-MAP:URI=\"%s\"\n", s.initPath(of))
		}
		s.writeSegment(b, of, end-of.end() <= partsListed, of != open)
	}
}

// skippable returns the number of segments that a delta update leaves out.
func skippable(all []*segment) int {
	n, end := 0, all[len(all)-1].end()
	for n < len(all) && end-all[n].end() > skipFrom {
		n++
	}
	return n
}

// hint writes the address of the next part.
func (s *Stream) hint(b *bytes.Buffer, name string, r *row) {
	// Hint at the next part even if no input feeds the stream: hls.js 1.7 takes a segment without
	// a successor for an unfinished segment and fails at its next discontinuity.
	number, n := r.latest()
	if r.open == nil || len(r.open.parts) == 0 {
		number, n = number+1, -1
	}
	fmt.Fprintf(b, "#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"%s\"\n", s.partPath(name, number, n+1))
}

// survey returns whether all segments begin with key frames, and the longest duration of a listed
// part.
func survey(all []*segment) (independent bool, target time.Duration) {
	independent, target = true, partTarget
	end := all[len(all)-1].end()
	for _, of := range all {
		independent = independent && of.independent
		for n := range of.parts {
			if end-of.end() <= partsListed { // a part of a single picture may be longer than partTarget
				target = max(target, units(of.parts[n].duration, of.track.TimeScale))
			}
		}
	}
	return independent, target
}

// writeSegment writes a segment's time, its parts if parts is true, and its address if the segment
// is finished.
func (s *Stream) writeSegment(b *bytes.Buffer, of *segment, parts, finished bool) {
	fmt.Fprintf(b, "#EXT-X-PROGRAM-DATE-TIME:%s\n", stamp(s.began.Add(of.begin())))
	if parts {
		for n, p := range of.parts {
			fmt.Fprintf(b, "#EXT-X-PART:DURATION=%.5f,URI=\"%s\"", units(p.duration, of.track.TimeScale).Seconds(), s.partPath(of.track.Name, of.number, n))
			if p.independent {
				b.WriteString(",INDEPENDENT=YES")
			}
			b.WriteByte('\n')
		}
	}
	if finished {
		fmt.Fprintf(b, "#EXTINF:%.5f,\n%s\n", of.seconds(), s.segmentPath(of))
	}
}

// reportLocked writes the latest parts of the other tracks.
func (s *Stream) reportLocked(b *bytes.Buffer, name string) {
	for i := range s.current.Tracks {
		other := s.current.Tracks[i].Name
		if other == name {
			continue
		}
		if r := s.rows[other]; r.listed < len(r.segments) {
			number, n := r.latest()
			fmt.Fprintf(b, "#EXT-X-RENDITION-REPORT:URI=\"%s.m3u8\",LAST-MSN=%d,LAST-PART=%d\n", other, number, max(n, 0))
		}
	}
}

// initPath, segmentPath and partPath return addresses relative to hls/ and dash/.
func (s *Stream) initPath(of *segment) string {
	return fmt.Sprintf("../media/%s/%s/init-%d.mp4", s.id, of.track.Name, of.epoch.Number)
}

func (s *Stream) segmentPath(of *segment) string {
	return fmt.Sprintf("../media/%s/%s/%d.m4s", s.id, of.track.Name, of.number)
}

func (s *Stream) partPath(track string, number int64, part int) string {
	return fmt.Sprintf("../media/%s/%s/%d.%d.m4s", s.id, track, number, part)
}

// stamp formats t for RFC 3339 and XML.
func stamp(t time.Time) string {
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
