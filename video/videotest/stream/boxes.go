package stream

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/abema/go-mp4"
)

// track is a rendition as described by its boxes (ISO/IEC 14496-12, ISO/IEC 23000-19).
type track struct {
	name, folder string
	video        bool
	scale        uint32
	id           uint32
	defaults     mp4.Trex

	target   float64 // target duration of the playlist, in seconds
	segments []segment
	end      uint64 // decode time after the last sample
	edit     int64  // shift of the edit list, subtracted from all times
	shown    int64  // time of the first picture or sound, before the shift
	number   uint32 // of the last fragment
}

// segment is a media segment of a track.
type segment struct {
	duration uint64 // in units of the track's scale
	size     int
	first    int // bytes to the end of the first sample
}

// peak returns the highest bit rate of a segment, among segments longer than half a second.
func (tr *track) peak() (most float64) {
	for _, s := range tr.segments {
		if seconds := float64(s.duration) / float64(tr.scale); seconds > 0.5 {
			most = max(most, float64(8*s.size)/seconds)
		}
	}
	return most
}

// boxes returns all boxes at a path.
func boxes[T mp4.IBox](t testing.TB, b []byte, at ...string) (found []T) {
	t.Helper()
	var where mp4.BoxPath
	for _, name := range at {
		where = append(where, mp4.StrToBoxType(name))
	}
	all, err := mp4.ExtractBoxWithPayload(bytes.NewReader(b), nil, where)
	if err != nil {
		t.Fatalf("%v: %v", at, err)
	}
	for _, one := range all {
		found = append(found, one.Payload.(T))
	}
	return found
}

// one returns the only box at a path, and fails the test unless exactly one exists.
func one[T mp4.IBox](t testing.TB, b []byte, at ...string) T {
	t.Helper()
	all := boxes[T](t, b, at...)
	if len(all) != 1 {
		t.Fatalf("%d boxes at %v, want 1", len(all), at)
	}
	return all[0]
}

// top returns the names and sizes of a file's top-level boxes, and fails the test unless they fill
// the file.
func top(t testing.TB, b []byte) (names []string, sizes []int) {
	t.Helper()
	r := bytes.NewReader(b)
	for at := uint64(0); at < uint64(len(b)); {
		if _, err := r.Seek(int64(at), 0); err != nil {
			t.Fatal(err)
		}
		info, err := mp4.ReadBoxInfo(r)
		if err != nil || info.Size < 8 || info.Size > uint64(len(b))-at {
			t.Fatalf("box at %d of %d bytes: %+v, %v", at, len(b), info, err)
		}
		names, sizes = append(names, info.Type.String()), append(sizes, int(info.Size))
		at += info.Size
	}
	return names, sizes
}

// CheckInit checks an initialisation segment without media segments. The segment has one track.
func CheckInit(t testing.TB, name string, init []byte) {
	t.Helper()
	newTrack(t, name, init)
}

// newTrack reads an initialisation segment.
func newTrack(t testing.TB, name string, init []byte) *track {
	t.Helper()
	names, _ := top(t, init)
	if len(names) != 2 || names[0] != "ftyp" || names[1] != "moov" {
		t.Fatalf("%s: the initialisation segment has %q", name, names)
	}
	brands := one[*mp4.Ftyp](t, init, "ftyp").CompatibleBrands
	if !slices.ContainsFunc(brands, func(b mp4.CompatibleBrandElem) bool { return string(b.CompatibleBrand[:]) == "iso6" }) {
		t.Errorf("%s: brands %s", name, brands)
	}
	tr := &track{
		name: name, scale: one[*mp4.Mdhd](t, init, "moov", "trak", "mdia", "mdhd").Timescale, id: one[*mp4.Tkhd](t, init, "moov", "trak", "tkhd").TrackID,
		defaults: *one[*mp4.Trex](t, init, "moov", "mvex", "trex"),
		video:    string(one[*mp4.Hdlr](t, init, "moov", "trak", "mdia", "hdlr").HandlerType[:]) == "vide",
	}
	if one[*mp4.Stts](t, init, "moov", "trak", "mdia", "minf", "stbl", "stts").EntryCount != 0 ||
		one[*mp4.Stsc](t, init, "moov", "trak", "mdia", "minf", "stbl", "stsc").EntryCount != 0 ||
		one[*mp4.Stco](t, init, "moov", "trak", "mdia", "minf", "stbl", "stco").EntryCount != 0 {
		t.Errorf("%s: samples in the initialisation segment", name)
	}
	tr.checkHeaders(t, init)
	if tr.defaults.TrackID != tr.id || tr.scale == 0 {
		t.Errorf("%s: track %d of scale %d, defaults of track %d", name, tr.id, tr.scale, tr.defaults.TrackID)
	}
	return tr
}

// checkHeaders checks the rules of RFC 8216 (3.3) and CMAF (ISO/IEC 23000-19, 7.3.2 and 7.5.13) for
// a track's headers: no durations, mvex after trak, and at most one edit, which has no duration and
// only shifts.
func (tr *track) checkHeaders(t testing.TB, init []byte) {
	t.Helper()
	movie, head := one[*mp4.Mvhd](t, init, "moov", "mvhd"), one[*mp4.Tkhd](t, init, "moov", "trak", "tkhd")
	if movie.GetDuration() != 0 || head.GetDuration() != 0 {
		t.Errorf("%s: the movie takes %d and its track %d; want 0", tr.name, movie.GetDuration(), head.GetDuration())
	}
	if extends, last := bytes.Index(init, []byte("mvex")), bytes.LastIndex(init, []byte("trak")); extends < last {
		t.Errorf("%s: mvex is at %d, the last trak at %d", tr.name, extends, last)
	}
	for i, list := range boxes[*mp4.Elst](t, init, "moov", "trak", "edts", "elst") {
		if i > 0 || len(list.Entries) != 1 || list.GetSegmentDuration(0) != 0 || list.GetMediaTime(0) < 0 || list.Entries[0].MediaRateInteger != 1 {
			t.Errorf("%s: edit list %d is %+v", tr.name, i+1, list)
			continue
		}
		tr.edit = list.GetMediaTime(0)
	}
}

// checkStart checks that a track starts at 0: video exactly, audio after the priming samples of the
// encoder.
func (tr *track) checkStart(t testing.TB) {
	t.Helper()
	const priming = 0.1 // seconds
	if early := tr.edit - tr.shown; tr.video && early != 0 || early < 0 || float64(early) > priming*float64(tr.scale) {
		t.Errorf("%s: what is shown first comes at %d, and the edit list takes %d off", tr.name, tr.shown, tr.edit)
	}
}

// add reads the next media segment.
func (tr *track) add(t testing.TB, b []byte) {
	t.Helper()
	name := fmt.Sprintf("%s: segment %d", tr.name, len(tr.segments)+1)
	head, sizes := fragment(t, name, b)
	s := &reading{
		track: tr, name: name, segment: segment{size: len(b)},
		header: one[*mp4.Tfhd](t, b, "moof", "traf", "tfhd"), begin: tr.checkBegin(t, name, b),
	}
	if len(tr.segments) == 0 {
		tr.shown = math.MaxInt64
	}
	for i, run := range boxes[*mp4.Trun](t, b, "moof", "traf", "trun") {
		if i > 0 && !run.CheckFlag(1) {
			continue
		}
		s.move(t, i, int(run.DataOffset), sizes[0]+8)
		for j := range run.Entries {
			s.add(t, run, i, j)
			if i == 0 && j == 0 {
				s.first = head + s.at
			}
		}
	}
	if s.at != sizes[0]+sizes[1] {
		t.Errorf("%s: samples end at %d, mdat at %d", name, s.at, sizes[0]+sizes[1])
	}
	tr.end += s.duration
	tr.segments = append(tr.segments, s.segment)
}

// fragment returns the number of bytes before the moof of a media segment, and the sizes of its moof
// and mdat.
func fragment(t testing.TB, name string, b []byte) (head int, sizes []int) {
	t.Helper()
	names, sizes := top(t, b)
	for len(names) > 0 && slices.Contains([]string{"styp", "sidx", "prft", "emsg"}, names[0]) {
		head += sizes[0]
		names, sizes = names[1:], sizes[1:]
	}
	if !slices.Equal(names, []string{"moof", "mdat"}) {
		t.Fatalf("%s has %q", name, names)
	}
	return head, sizes
}

// checkBegin checks that a media segment follows the one before, and returns its decode time.
func (tr *track) checkBegin(t testing.TB, name string, b []byte) uint64 {
	t.Helper()
	number := one[*mp4.Mfhd](t, b, "moof", "mfhd").SequenceNumber
	if number <= tr.number {
		t.Errorf("%s has number %d, the one before %d", name, number, tr.number)
	}
	tr.number = number
	header := one[*mp4.Tfhd](t, b, "moof", "traf", "tfhd")
	if header.TrackID != tr.id || !header.CheckFlag(mp4.TfhdDefaultBaseIsMoof) || header.CheckFlag(mp4.TfhdBaseDataOffsetPresent) {
		t.Errorf("%s: tfhd %+v", name, header)
	}
	decode := one[*mp4.Tfdt](t, b, "moof", "traf", "tfdt")
	begin := decode.BaseMediaDecodeTimeV1
	if decode.GetVersion() == 0 {
		begin = uint64(decode.BaseMediaDecodeTimeV0)
	}
	if begin != tr.end {
		t.Errorf("%s begins at %d, the one before ends at %d", name, begin, tr.end)
	}
	return begin
}

// reading is a media segment whose samples are being read.
type reading struct {
	segment
	track  *track
	name   string
	header *mp4.Tfhd
	begin  uint64
	at     int // offset behind the last sample, relative to moof
}

// move goes to the data of run i, which begins behind the last sample, or for the first run at the
// data of mdat.
func (s *reading) move(t testing.TB, i, to, mdat int) {
	t.Helper()
	if i == 0 {
		s.at = mdat
	}
	if to != s.at {
		t.Errorf("%s: run %d is at %d, want %d", s.name, i, to, s.at)
	}
	s.at = to
}

// add reads sample j of run i.
func (s *reading) add(t testing.TB, run *mp4.Trun, i, j int) {
	t.Helper()
	duration, size, flags := s.properties(run, j)
	s.checkSync(t, i == 0 && j == 0, j, flags)
	late := int64(0)
	if run.CheckFlag(0x800) {
		late = run.GetSampleCompositionTimeOffset(j)
	}
	if late < 0 { // libavformat and browsers change such times
		t.Errorf("%s: sample %d is shown %d before it is decoded", s.name, j+1, -late)
	}
	if len(s.track.segments) == 0 {
		s.track.shown = min(s.track.shown, int64(s.begin+s.duration)+late)
	}
	if duration == 0 || size == 0 {
		t.Errorf("%s: sample %d takes %d and has %d bytes", s.name, j+1, duration, size)
	}
	s.duration += uint64(duration)
	s.at += int(size)
}

// properties returns the properties of a sample: its own, else those of tfhd, else those of trex.
func (s *reading) properties(run *mp4.Trun, j int) (duration, size, flags uint32) {
	choose := func(own, header bool, values ...uint32) uint32 {
		switch {
		case own:
			return values[0]
		case header:
			return values[1]
		}
		return values[2]
	}
	e, h, d := run.Entries[j], s.header, s.track.defaults
	duration = choose(run.CheckFlag(0x100), h.CheckFlag(mp4.TfhdDefaultSampleDurationPresent), e.SampleDuration, h.DefaultSampleDuration, d.DefaultSampleDuration)
	size = choose(run.CheckFlag(0x200), h.CheckFlag(mp4.TfhdDefaultSampleSizePresent), e.SampleSize, h.DefaultSampleSize, d.DefaultSampleSize)
	flags = choose(run.CheckFlag(0x400), h.CheckFlag(mp4.TfhdDefaultSampleFlagsPresent), e.SampleFlags, h.DefaultSampleFlags, d.DefaultSampleFlags)
	if j == 0 && run.CheckFlag(4) && !run.CheckFlag(0x400) {
		flags = run.FirstSampleFlags
	}
	return duration, size, flags
}

// checkSync checks that the first sample of a segment, and of video no other one, can be decoded
// alone.
func (s *reading) checkSync(t testing.TB, first bool, j int, flags uint32) {
	t.Helper()
	const isNoSync = 1 << 16 // sample_is_non_sync_sample
	sync := flags&isNoSync == 0
	switch {
	case first && !sync:
		t.Errorf("%s does not begin with a sync sample: flags %#x", s.name, flags)
	case !first && s.track.video && sync && flags>>24&3 != 2:
		t.Errorf("%s: sample %d depends on none, and is no first one: flags %#x", s.name, j+1, flags)
	}
}
