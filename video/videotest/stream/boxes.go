package stream

import (
	"bytes"
	"math"
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
	brands := map[string]bool{}
	for _, b := range one[*mp4.Ftyp](t, init, "ftyp").CompatibleBrands {
		brands[string(b.CompatibleBrand[:])] = true
	}
	if !brands["iso6"] {
		t.Errorf("%s: brands %v", name, brands)
	}
	tr := &track{
		name: name, scale: one[*mp4.Mdhd](t, init, "moov", "trak", "mdia", "mdhd").Timescale, id: one[*mp4.Tkhd](t, init, "moov", "trak", "tkhd").TrackID,
		defaults: *one[*mp4.Trex](t, init, "moov", "mvex", "trex"),
		video:    string(one[*mp4.Hdlr](t, init, "moov", "trak", "mdia", "hdlr").HandlerType[:]) == "vide",
	}
	for _, table := range []string{"stts", "stsc", "stco"} {
		switch b := one[mp4.IBox](t, init, "moov", "trak", "mdia", "minf", "stbl", table).(type) {
		case *mp4.Stts:
			if b.EntryCount != 0 {
				t.Errorf("%s: samples in the initialisation segment", name)
			}
		case *mp4.Stsc:
			if b.EntryCount != 0 {
				t.Errorf("%s: samples in the initialisation segment", name)
			}
		case *mp4.Stco:
			if b.EntryCount != 0 {
				t.Errorf("%s: samples in the initialisation segment", name)
			}
		}
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
	n := len(tr.segments) + 1
	names, sizes := top(t, b)
	head := 0 // bytes before moof
	for len(names) > 0 && (names[0] == "styp" || names[0] == "sidx" || names[0] == "prft" || names[0] == "emsg") {
		head += sizes[0]
		names, sizes = names[1:], sizes[1:]
	}
	if len(names) != 2 || names[0] != "moof" || names[1] != "mdat" {
		t.Fatalf("%s: segment %d has %q", tr.name, n, names)
	}
	number := one[*mp4.Mfhd](t, b, "moof", "mfhd").SequenceNumber
	if number <= tr.number {
		t.Errorf("%s: segment %d has number %d, the one before %d", tr.name, n, number, tr.number)
	}
	tr.number = number
	header := one[*mp4.Tfhd](t, b, "moof", "traf", "tfhd")
	if header.TrackID != tr.id || !header.CheckFlag(mp4.TfhdDefaultBaseIsMoof) || header.CheckFlag(mp4.TfhdBaseDataOffsetPresent) {
		t.Errorf("%s: segment %d: tfhd %+v", tr.name, n, header)
	}
	decode := one[*mp4.Tfdt](t, b, "moof", "traf", "tfdt")
	begin := decode.BaseMediaDecodeTimeV1
	if decode.GetVersion() == 0 {
		begin = uint64(decode.BaseMediaDecodeTimeV0)
	}
	if begin != tr.end {
		t.Errorf("%s: segment %d begins at %d, the one before ends at %d", tr.name, n, begin, tr.end)
	}
	own := segment{size: len(b)}
	if n == 1 {
		tr.shown = math.MaxInt64
	}
	at := 0 // offset behind the last sample, relative to moof
	for i, run := range boxes[*mp4.Trun](t, b, "moof", "traf", "trun") {
		if i > 0 && !run.CheckFlag(1) {
			continue
		}
		if i == 0 || int(run.DataOffset) != at {
			if want := sizes[0] + 8; i == 0 && int(run.DataOffset) != want || i > 0 {
				t.Errorf("%s: segment %d: run %d is at %d, want %d", tr.name, n, i, run.DataOffset, max(want, at))
			}
			at = int(run.DataOffset)
		}
		for j, e := range run.Entries {
			duration, size, flags := tr.defaults.DefaultSampleDuration, tr.defaults.DefaultSampleSize, tr.defaults.DefaultSampleFlags
			if header.CheckFlag(mp4.TfhdDefaultSampleDurationPresent) {
				duration = header.DefaultSampleDuration
			}
			if header.CheckFlag(mp4.TfhdDefaultSampleSizePresent) {
				size = header.DefaultSampleSize
			}
			if header.CheckFlag(mp4.TfhdDefaultSampleFlagsPresent) {
				flags = header.DefaultSampleFlags
			}
			if run.CheckFlag(0x100) {
				duration = e.SampleDuration
			}
			if run.CheckFlag(0x200) {
				size = e.SampleSize
			}
			if run.CheckFlag(0x400) {
				flags = e.SampleFlags
			} else if j == 0 && run.CheckFlag(4) {
				flags = run.FirstSampleFlags
			}
			const isNoSync = 1 << 16 // sample_is_non_sync_sample
			if first := i == 0 && j == 0; first && flags&isNoSync != 0 {
				t.Errorf("%s: segment %d does not begin with a sync sample: flags %#x", tr.name, n, flags)
			} else if !first && tr.video && flags&isNoSync == 0 && flags>>24&3 != 2 {
				t.Errorf("%s: segment %d: sample %d depends on none, and is no first one: flags %#x", tr.name, n, j+1, flags)
			}
			late := int64(0)
			if run.CheckFlag(0x800) {
				late = run.GetSampleCompositionTimeOffset(j)
			}
			if late < 0 { // libavformat and browsers change such times
				t.Errorf("%s: segment %d: sample %d is shown %d before it is decoded", tr.name, n, j+1, -late)
			}
			if n == 1 {
				tr.shown = min(tr.shown, int64(begin+own.duration)+late)
			}
			if duration == 0 || size == 0 {
				t.Errorf("%s: segment %d: sample %d takes %d and has %d bytes", tr.name, n, j+1, duration, size)
			}
			own.duration += uint64(duration)
			at += int(size)
			if i == 0 && j == 0 {
				own.first = head + at
			}
		}
	}
	if at != sizes[0]+sizes[1] {
		t.Errorf("%s: segment %d: samples end at %d, mdat at %d", tr.name, n, at, sizes[0]+sizes[1])
	}
	tr.end += own.duration
	tr.segments = append(tr.segments, own)
}
