package transcode_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// quality returns the PSNR of a film's pictures against the source's pictures, in dB.
func quality(b *testing.B, path, source string) float64 {
	b.Helper()
	out, err := exec.Command("ffmpeg", "-v", "info", "-nostdin", "-i", path, "-i", source, "-lavfi", "psnr", "-f", "null", "-").CombinedOutput()
	_, after, ok := strings.Cut(string(out), "average:")
	if err != nil || !ok {
		b.Fatalf("%v\n%s", err, out)
	}
	db, err := strconv.ParseFloat(strings.Fields(after)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return db
}

// processor returns the CPU time of this process.
func processor(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkLadder transcodes a film into a ladder of four rungs on one core: with the ffmpeg
// program, with one chunk of the same settings, and with two chunks, the second beginning 4 seconds
// after a key frame of the source. The benchmark reports the CPU time of the chunks relative to the
// program's, and PSNR and bytes of the first rung of each way.
func BenchmarkLadder(b *testing.B) {
	ffmpeg.Check = false // checking overwrites every frame
	defer func() { ffmpeg.Check = true }()
	const seconds, rate = 8, 25
	source := clip(b, "in.mp4", strings.Fields(fmt.Sprintf("-f lavfi -i testsrc2=size=1280x720:rate=%d:duration=%d -vf noise=alls=12:allf=t -c:v libx264 -preset veryfast -crf 16 -g 125 -bf 2", rate, seconds))...)
	rungs := media.Ladder(1280, 720, rate, 4)
	dir := b.TempDir()
	args := strings.Fields("-v error -nostdin -y -threads 1 -filter_complex_threads 1 -i " + source + " -filter_complex")
	var split, scaled strings.Builder
	fmt.Fprintf(&split, "fps=%d,split=%d", rate, len(rungs))
	var outs []string
	for i, r := range rungs {
		fmt.Fprintf(&split, "[s%d]", i)
		fmt.Fprintf(&scaled, ";[s%d]scale=%d:%d:flags=bicubic,format=yuv420p,setsar=1[o%[1]d]", i, r.Width, r.Height)
		outs = append(outs, strings.Fields(fmt.Sprintf("-map [o%d] -c:v libx264 -threads 1 -preset veryfast -profile:v high -crf 21 -maxrate %d -bufsize %d -g 100 -keyint_min 100 -sc_threshold 0 -forced-idr 1 -an %s",
			i, r.BitRate, 2*r.BitRate, filepath.Join(dir, fmt.Sprintf("p%d.mp4", i))))...)
	}
	args = append(append(args, split.String()+scaled.String()), outs...)
	c := media.Chunk{Grid: media.Grid{Rate: media.Fraction{Num: rate, Den: 1}, Segment: 100}, Rungs: rungs, Preset: "veryfast", Threads: 1}
	var program, whole, halves time.Duration // of processors
	made := func(name string, frames int) time.Duration {
		began := processor(b)
		var film []byte
		for from := 0; from < seconds*rate; from += frames {
			c.From, c.To = from, from+frames
			head, bodies, err := transcode.Chunk(source, c)
			if err != nil {
				b.Fatal(err)
			}
			if from > 0 {
				bodies[0] = bodies[0][head.Rungs[0].Init:]
			}
			film = append(film, bodies[0]...)
		}
		took := processor(b) - began
		if err := os.WriteFile(filepath.Join(dir, name), film, 0o600); err != nil {
			b.Fatal(err)
		}
		return took
	}
	for b.Loop() {
		cmd := exec.Command("ffmpeg", args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		program += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		whole += made("whole.mp4", seconds*rate)
		halves += made("halves.mp4", seconds*rate/2)
	}
	b.ReportMetric(float64(program)/float64(whole), "whole/ffmpeg")
	b.ReportMetric(float64(program)/float64(halves), "halves/ffmpeg")
	b.ReportMetric(0, "ns/op")
	for _, name := range []string{"p0", "whole", "halves"} {
		path := filepath.Join(dir, name+".mp4")
		info, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(quality(b, path, source), name+"-dB")
		b.ReportMetric(float64(info.Size())/1e6, name+"-MB")
	}
}
