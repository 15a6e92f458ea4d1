package packager_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/fre-engine/fre/video/packager"
)

// FuzzTrack: whatever an initialisation segment is, it is read or refused, and what is
// protected of it can be told from it.
func FuzzTrack(f *testing.F) {
	for _, film := range films(f) {
		f.Add(film.init)
	}
	f.Fuzz(func(t *testing.T, init []byte) {
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
		if len(b) > len(init)+300 {
			t.Errorf("%d bytes are protected as %d", len(init), len(b))
		}
	})
}

// FuzzFragment: whatever a segment is, it is read or refused, and all that is made of it is
// as large as it was said to be.
func FuzzFragment(f *testing.F) {
	var tracks []*packager.Track
	for i, film := range films(f) {
		tracks = append(tracks, film.track(f))
		f.Add(uint8(i), film.segments[0][:min(len(film.segments[0]), 4096)])
		f.Add(uint8(i), short(f, film))
	}
	var fragment packager.Fragment
	f.Fuzz(func(t *testing.T, which uint8, segment []byte) {
		track := tracks[int(which)%len(tracks)]
		before := bytes.Clone(segment)
		if err := fragment.Read(track, segment); err != nil {
			if !errors.Is(err, packager.ErrInput) {
				t.Errorf("another error: %v", err)
			}
			return
		}
		e := &packager.SampleAES{Key: key, IV: iv}
		for _, e := range []*packager.SampleAES{nil, e} {
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
	})
}
