package packager_test

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/Eyevinn/mp4ff/avc"
	"github.com/Eyevinn/mp4ff/bits"
	"github.com/Eyevinn/mp4ff/mp4"
	"github.com/bluenviron/mediacommon/v2/pkg/formats/mpegts"
	"github.com/bluenviron/mediacommon/v2/pkg/formats/mpegts/codecs"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/packager"
	"github.com/fre-engine/fre/video/transcode"
)

// heavy returns a segment of about 1 MB: four seconds of 720p, as in the measurement of nginx-vod.
func heavy(b *testing.B) (init, segment []byte) {
	b.Helper()
	path := source(b, "25", 4, "-vf scale=1280:720,noise=alls=8:allf=t -c:v libx264 -preset ultrafast -c:a pcm_s16le")
	head, bodies, err := transcode.Chunk(path, media.Chunk{
		Grid: media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 100}, To: 100,
		Rungs: []media.Rung{{Width: 1280, Height: 720, BitRate: 2_100_000}}, Preset: "ultrafast",
	})
	if err != nil {
		b.Fatal(err)
	}
	made := head.Rungs[0]
	init, segment = bodies[0][:made.Init], bodies[0][made.Init:made.Init+made.Segments[0]]
	b.Logf("a segment of %d bytes", len(segment))
	return init, segment
}

// bench measures a conversion of the segment; each round reads the segment anew.
func bench(b *testing.B, what func(f *packager.Fragment, to []byte) ([]byte, error)) {
	b.Helper()
	init, segment := heavy(b)
	track, err := packager.ReadTrack(init)
	if err != nil {
		b.Fatal(err)
	}
	var f packager.Fragment
	to := make([]byte, 0, 2*len(segment))
	repeat(b, len(segment), func() error {
		if err := f.Read(track, segment); err != nil {
			return err
		}
		_, err := what(&f, to)
		return err
	})
}

// repeat measures do for a segment of size bytes.
func repeat(b *testing.B, size int, do func() error) {
	b.Helper()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	before := spent(b)
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*float64(size)/1e6/(spent(b)-before).Seconds(), "MB/cpu-s")
}

// spent returns the CPU time of this process, since the machine may have further work.
func spent(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkRead(b *testing.B) {
	bench(b, func(_ *packager.Fragment, to []byte) ([]byte, error) { return to, nil })
}

func BenchmarkTS(b *testing.B) {
	bench(b, func(f *packager.Fragment, to []byte) ([]byte, error) { return f.AppendTS(to, nil) })
}

// BenchmarkAES128 includes making the transport stream.
func BenchmarkAES128(b *testing.B) {
	bench(b, func(f *packager.Fragment, to []byte) ([]byte, error) {
		ts, err := f.AppendTS(to, nil)
		return packager.AppendAES128(ts[:0], ts, &key, &iv), err
	})
}

func BenchmarkSampleAES(b *testing.B) {
	e := &packager.SampleAES{Key: key, IV: iv}
	bench(b, func(f *packager.Fragment, to []byte) ([]byte, error) { return f.AppendTS(to, e) })
}

func BenchmarkCBCS(b *testing.B) {
	p := &packager.Protection{Key: key, IV: iv}
	bench(b, func(f *packager.Fragment, to []byte) ([]byte, error) { return f.AppendCBCS(to, p) })
}

// BenchmarkCopy measures the memory.
func BenchmarkCopy(b *testing.B) {
	bench(b, func(_ *packager.Fragment, to []byte) ([]byte, error) {
		return append(to, to[:cap(to)/2]...), nil
	})
}

// peer parses a segment with mp4ff in each round and calls what with the fragment.
func peer(b *testing.B, what func(init *mp4.InitSegment, f *mp4.Fragment) error) {
	b.Helper()
	init, segment := heavy(b)
	head, err := mp4.DecodeFile(bytes.NewReader(init))
	if err != nil {
		b.Fatal(err)
	}
	var room []byte
	repeat(b, len(segment), func() error {
		room = append(room[:0], segment...) // mp4ff encrypts in place
		from := bits.NewFixedSliceReader(room)
		f := mp4.NewFragment()
		for from.NrRemainingBytes() > 0 {
			box, err := mp4.DecodeBoxSR(uint64(from.GetPos()), from)
			if err != nil {
				return err
			}
			f.AddChild(box)
		}
		return what(head.Init, f)
	})
}

// BenchmarkReadPeer is the peer of BenchmarkRead: mp4ff parses the boxes, but no NAL units.
func BenchmarkReadPeer(b *testing.B) {
	peer(b, func(*mp4.InitSegment, *mp4.Fragment) error { return nil })
}

// BenchmarkCBCSPeer is the peer of BenchmarkCBCS: mp4ff encrypts.
func BenchmarkCBCSPeer(b *testing.B) {
	var how *mp4.InitProtectData
	var to bytes.Buffer
	peer(b, func(init *mp4.InitSegment, f *mp4.Fragment) (err error) {
		if how == nil {
			if how, err = mp4.InitProtect(init, key[:], iv[:], "cbcs", key[:], nil); err != nil {
				return err
			}
		}
		if _, err := mp4.EncryptFragment(f, key[:], iv[:], how); err != nil {
			return err
		}
		to.Reset()
		return f.Encode(&to)
	})
}

// BenchmarkTSPeer is the peer of BenchmarkTS: mp4ff parses and mediacommon writes the stream.
func BenchmarkTSPeer(b *testing.B) {
	var to bytes.Buffer
	peer(b, func(init *mp4.InitSegment, f *mp4.Fragment) error {
		samples, err := f.GetFullSamples(init.Moov.Mvex.Trex)
		if err != nil {
			return err
		}
		to.Reset()
		track := &mpegts.Track{PID: 256, Codec: &codecs.H264{}}
		w := &mpegts.Writer{W: &to, Tracks: []*mpegts.Track{track}}
		if err := w.Initialize(); err != nil {
			return err
		}
		for i := range samples {
			units, err := avc.GetNalusFromSample(samples[i].Data)
			if err != nil {
				return err
			}
			if err := w.WriteH264(track, samples[i].PresentationTime(), int64(samples[i].DecodeTime), units); err != nil {
				return err
			}
		}
		return nil
	})
}
