package packager_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/packager"
	"github.com/fre-engine/fre/video/transcode"
)

// heavy is a segment of about 1 MB: four seconds of 720p, as nginx-vod was measured with.
func heavy(b *testing.B) (*packager.Track, []byte) {
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
	track, err := packager.ReadTrack(bodies[0][:made.Init])
	if err != nil {
		b.Fatal(err)
	}
	segment := bodies[0][made.Init : made.Init+made.Segments[0]]
	b.Logf("a segment of %d bytes", len(segment))
	return track, segment
}

// bench measures what is made of the segment, read anew each time.
func bench(b *testing.B, what func(f *packager.Fragment, to []byte) ([]byte, error)) {
	b.Helper()
	track, segment := heavy(b)
	var f packager.Fragment
	to := make([]byte, 0, 2*len(segment))
	b.SetBytes(int64(len(segment)))
	b.ReportAllocs()
	before := spent(b)
	for b.Loop() {
		if err := f.Read(track, segment); err != nil {
			b.Fatal(err)
		}
		if _, err := what(&f, to); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*float64(len(segment))/1e6/(spent(b)-before).Seconds(), "MB/cpu-s")
}

// spent is how long processors have worked for this one: others may work on the machine too.
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

// BenchmarkAES128 makes the transport stream too.
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

// BenchmarkCopy is what the memory can do.
func BenchmarkCopy(b *testing.B) {
	bench(b, func(_ *packager.Fragment, to []byte) ([]byte, error) {
		return append(to, to[:cap(to)/2]...), nil
	})
}
