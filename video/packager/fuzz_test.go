package packager_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/fre-engine/fre/video/packager"
)

// seeds are small films of all codecs.
func seeds(f testing.TB) []*film {
	f.Helper()
	return []*film{
		foreign(f, "x264", "libx264 -preset ultrafast -x264-params slices=2"), foreign(f, "x265", "libx265 -preset ultrafast -x265-params log-level=none -tag:v hvc1"),
		foreign(f, "mono", "aac"), sound(f, 3),
	}
}

// FuzzTrack: any initialisation segment is read or refused, and its protected form can be read
// again.
func FuzzTrack(f *testing.F) {
	for _, film := range seeds(f) {
		f.Add(film.init)
	}
	f.Fuzz(initialised)
}

func initialised(t *testing.T, init []byte) {
	t.Helper()
	track, err := packager.ReadTrack(init)
	if err != nil {
		if !errors.Is(err, packager.ErrInput) {
			t.Errorf("another error: %v", err)
		}
		return
	}
	b, err := packager.AppendCBCSInit(nil, init, &packager.Protection{Key: key})
	if err != nil && track.Codec != packager.HEVC {
		t.Errorf("it cannot be protected: %v", err)
	}
	if len(b) > 2*len(init)+300 {
		t.Errorf("%d bytes are protected as %d", len(init), len(b))
	}
}

// FuzzFragment: any segment is read or refused, and each result has the announced size.
func FuzzFragment(f *testing.F) {
	var tracks []*packager.Track
	for i, film := range seeds(f) {
		tracks = append(tracks, film.track(f))
		f.Add(uint8(i), short(f, film))
	}
	var fragment packager.Fragment
	f.Fuzz(func(t *testing.T, which uint8, segment []byte) {
		packaged(t, &fragment, tracks[int(which)%len(tracks)], segment)
	})
}

// packaged makes all forms of a segment, and reports whether the segment could be read.
func packaged(t *testing.T, fragment *packager.Fragment, track *packager.Track, segment []byte) bool {
	t.Helper()
	before := bytes.Clone(segment)
	if err := fragment.Read(track, segment); err != nil {
		if !errors.Is(err, packager.ErrInput) {
			t.Errorf("another error: %v", err)
		}
		return false
	}
	for _, e := range []*packager.SampleAES{nil, {Key: key, IV: iv}} {
		size := fragment.TSSize(e)
		if size > int64(len(segment))*400+100_000 {
			t.Fatalf("%d bytes become %d", len(segment), size)
		}
		b, err := fragment.AppendTS(nil, e)
		switch n := int64(len(b)); {
		case err != nil:
			if !errors.Is(err, packager.ErrInput) || n > 0 {
				t.Errorf("%d bytes and another error: %v", n, err)
			}
		case n > size || e == nil && n != size:
			t.Errorf("%d bytes, said %d", n, size)
		}
	}
	size := fragment.CBCSSize()
	b, err := fragment.AppendCBCS(nil, &packager.Protection{Key: key, IV: iv})
	if err != nil && (!errors.Is(err, packager.ErrInput) || len(b) > 0) {
		t.Errorf("%d bytes and another error: %v", len(b), err)
	}
	if int64(len(b)) > size {
		t.Errorf("%d bytes, at most %d said", len(b), size)
	}
	if err == nil {
		if err := fragment.Read(track, b); err == nil && track.Codec != packager.AAC {
			t.Error("it can be protected once more")
		}
	}
	if !bytes.Equal(before, segment) {
		t.Error("the segment is another")
	}
	return true
}

// TestHostile: segments truncated at each byte, and segments with changed bytes in boxes and at the
// beginning of slices, are read or refused.
func TestHostile(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var fragment packager.Fragment
	for _, f := range seeds(t) {
		track, whole := f.track(t), short(t, f)
		for n := range min(len(whole), 600) {
			packaged(t, &fragment, track, whole[:n:n])
		}
		for n := range len(f.init) {
			initialised(t, f.init[:n:n])
		}
		read := 0
		for range 20_000 {
			b, init := bytes.Clone(whole), bytes.Clone(f.init)
			for range 1 + random.IntN(3) {
				b[random.IntN(min(len(b), 400))] = byte(random.Uint32() >> random.IntN(9))
				init[random.IntN(len(init))] = byte(random.Uint32() >> random.IntN(9))
			}
			if packaged(t, &fragment, track, b) {
				read++
			}
			initialised(t, init)
			// The track may contradict the segment.
			if other, err := packager.ReadTrack(init); err == nil {
				packaged(t, &fragment, other, b)
			}
		}
		if read < 1000 {
			t.Errorf("%s: only %d were read", f.name, read)
		}
	}
}
