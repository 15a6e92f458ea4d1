package transcode_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/video/ffmpeg"
)

// mostMemory is a child's memory limit for any input: half of a sandbox's memory.
const mostMemory = 512 << 20

// hostile runs a file through a child, and checks the rules for all files: no crash, bounded memory
// and time, errors with text, no leaks.
func hostile(t *testing.T, path string) *report {
	t.Helper()
	w := newWorker(t)
	r, err := w.work(path, time.Minute)
	if err == nil {
		err = w.close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Peak == 0 || r.Peak > mostMemory {
		t.Errorf("it took %d MiB", r.Peak>>20)
	}
	t.Logf("%d MiB, %+v", r.Peak>>20, r.Errors)
	return r
}

// refused checks that every operation failed.
func refused(t *testing.T, r *report, words string) {
	t.Helper()
	for what, err := range r.Errors {
		if err == "" || !strings.Contains(err, words) {
			t.Errorf("%s: %q, want %q", what, err, words)
		}
	}
}

// made checks that exactly the named operations succeeded.
func made(t *testing.T, r *report, what ...string) {
	t.Helper()
	for w, err := range r.Errors {
		if (err == "") != slices.Contains(what, w) {
			t.Errorf("%s: %q; want %v made", w, err, what)
		}
	}
}

const (
	film3 = "-f lavfi -i testsrc2=size=128x72:rate=25:duration=3 -f lavfi -i sine=duration=3 -c:v libx264 -preset ultrafast -bf 2 -g 25 -c:a aac "
	quick = "-c:v libx264 -preset ultrafast "
)

// contents makes a file with the ffmpeg program and returns its bytes.
func contents(t *testing.T, name, args string) []byte {
	t.Helper()
	b, err := os.ReadFile(clip(t, name, strings.Fields(args)...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestHostileNothing: files without media are refused with the libraries' error.
func TestHostileNothing(t *testing.T) {
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	for _, tt := range []struct{ name, content, words string }{
		{"zero.mp4", "", ""},
		{"text.mp4", "This is no film, whatever it is called.\n", "Invalid data"},
		{"noise.mkv", string(noise), ""},
		{"zeros.ts", string(make([]byte, 1<<20)), ""},
		{"program.avi", "\x7fELF\x02\x01\x01" + string(noise[:5000]), "Invalid data"},
		{"riff.avi", "RIFF\xff\xff\xff\xffAVI LIST\xff\xff\xff\xffhdrl", ""},
		{"page.webm", "<html><body><video src=x></body></html>", "Invalid data"},
	} {
		t.Run(tt.name, func(t *testing.T) { refused(t, hostile(t, write(t, tt.name, tt.content)), tt.words) })
	}
}

// TestHostileTruncated: a truncated file is transcoded up to its end, except an MP4 whose index is
// missing.
func TestHostileTruncated(t *testing.T) {
	for _, tt := range []struct {
		name, args string
		made       []string
	}{
		{"index-at-end.mp4", "", nil},
		{"index-first.mp4", "-movflags +faststart", []string{"probe", "chunk0", "chunk25", "sound", "thumbs"}},
		{"fragments.mp4", "-movflags +frag_keyframe+empty_moov", []string{"probe", "chunk0", "chunk25", "sound", "thumbs"}},
		{"film.mkv", "", []string{"probe", "chunk0", "chunk25", "sound", "thumbs"}},
		{"film.ts", "", []string{"probe", "chunk0", "chunk25", "sound", "thumbs"}},
		{"film.flv", "", []string{"probe", "chunk0", "chunk25", "sound", "thumbs"}},
		{"film.avi", "", []string{"probe", "chunk0", "chunk25", "sound", "thumbs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := contents(t, tt.name, film3+tt.args)
			r := hostile(t, write(t, tt.name, string(b[:len(b)*2/3])))
			if tt.made == nil {
				refused(t, r, "moov atom not found")
				return
			}
			made(t, r, tt.made...)
			if r.Frames["chunk0"] < 40 {
				t.Errorf("%+v", r.Frames)
			}
		})
	}
}

// TestHostileTail: a file with a broken end is transcoded up to the broken part.
func TestHostileTail(t *testing.T) {
	for _, name := range []string{"film.mp4", "film.mkv", "film.ts", "film.flv"} {
		for tail, fill := range map[string]byte{"zeros": 0, "ones": 0xff} {
			t.Run(name+" "+tail, func(t *testing.T) {
				b := contents(t, name, film3+map[bool]string{true: "-movflags +faststart"}[name == "film.mp4"])
				for i := len(b) * 3 / 4; i < len(b); i++ {
					b[i] = fill
				}
				r := hostile(t, write(t, name, string(b)))
				made(t, r, "probe", "chunk0", "chunk25", "sound", "thumbs")
				if r.Frames["chunk0"] != 50 {
					t.Errorf("%+v", r.Frames)
				}
			})
		}
	}
}

// TestHostileUnits: chunks with corrupt H.264 units keep their number of frames.
func TestHostileUnits(t *testing.T) {
	for _, name := range []string{"film.mp4", "film.mkv", "film.ts", "film.flv"} {
		t.Run(name, func(t *testing.T) {
			b := contents(t, name, strings.Replace(film3, "duration=3", "duration=5", 2)+map[bool]string{true: "-movflags +faststart"}[name == "film.mp4"])
			for i := len(b) * 2 / 5; i < len(b)*3/5; i += 97 {
				b[i] ^= 0x55
			}
			r := hostile(t, write(t, name, string(b)))
			made(t, r, "probe", "chunk0", "chunk25", "sound", "thumbs")
			if r.Frames["chunk0"] != 50 || r.Frames["chunk25"] != 50 {
				t.Errorf("%+v", r.Frames)
			}
		})
	}
}

// TestHostilePictures: pictures that are too large, or whose header claims so, are not decoded.
func TestHostilePictures(t *testing.T) {
	jpeg := contents(t, "in.avi", "-f lavfi -i testsrc2=size=64x64:rate=25:duration=2 -c:v mjpeg")
	for i := 0; ; {
		n := bytes.Index(jpeg[i:], []byte{0xff, 0xc0, 0, 17, 8})
		if n < 0 {
			break
		}
		i += n + 5
		copy(jpeg[i:], "\xff\xff\xff\xff")
	}
	gif := contents(t, "in.gif", "-f lavfi -i testsrc2=size=64x64:rate=25:duration=1")
	copy(gif[6:], "\xff\xff\xff\xff")
	huge := clip(t, "huge.mkv", strings.Fields("-f lavfi -i color=size=10000x4000:duration=0.04 -threads 1 -c:v png -pred none -compression_level 1")...)
	for _, tt := range []struct {
		name  string
		bytes []byte
	}{{"header.avi", jpeg}, {"header.gif", gif}} {
		t.Run(tt.name, func(t *testing.T) {
			r := hostile(t, write(t, tt.name, string(tt.bytes)))
			if r.Errors["chunk0"] == "" || r.Errors["thumbs"] == "" {
				t.Errorf("%+v", r)
			}
		})
	}
	t.Run("bomb.mkv", func(t *testing.T) {
		r := hostile(t, huge)
		if !strings.Contains(r.Errors["chunk0"], "max pixel") || !strings.Contains(r.Errors["thumbs"], "max pixel") {
			t.Errorf("%+v", r)
		}
	})
}

// box returns the box with a name in an MP4, from the box's version field on.
func box(t *testing.T, b []byte, name string, n int) []byte {
	t.Helper()
	for ; n > 0; n-- {
		i := bytes.Index(b, []byte(name))
		if i < 0 {
			t.Fatalf("there is no %s", name)
		}
		b = b[i+4:]
	}
	return b
}

// TestHostileTimes: impossible durations and times cost neither memory nor time, and are ignored.
func TestHostileTimes(t *testing.T) {
	t.Run("header", func(t *testing.T) { // 136 years in both headers, which are of version 0
		b := contents(t, "in.mp4", film3)
		binary.BigEndian.PutUint32(box(t, b, "mvhd", 1)[16:], 0xfffffff0)
		binary.BigEndian.PutUint32(box(t, b, "mdhd", 1)[16:], 0xfffffff0)
		r := hostile(t, write(t, "in.mp4", string(b)))
		made(t, r, "probe", "chunk0", "chunk25", "sound", "thumbs")
		if r.Source.Duration != 0 || r.Thumbs > 4 {
			t.Errorf("%+v, %d pictures", r.Source, r.Thumbs)
		}
	})
	t.Run("frames", func(t *testing.T) { // each is shown for days
		b := contents(t, "in.mp4", film3)
		binary.BigEndian.PutUint32(box(t, b, "stts", 1)[12:], 0x7ffffff0)
		r := hostile(t, write(t, "in.mp4", string(b)))
		if r.Errors["probe"] != "" || r.Frames["chunk0"] < 1 || r.Thumbs < 1 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a day each", func(t *testing.T) {
		r := hostile(t, clip(t, "in.mkv", strings.Fields("-f lavfi -i testsrc2=size=128x72:rate=25:duration=1 -vf setpts=N*86400/TB -vsync passthrough "+quick)...))
		made(t, r, "probe", "chunk0", "chunk25", "thumbs")
		if r.Frames["chunk0"] != 50 || r.Frames["chunk25"] != 50 || r.Thumbs > 2000 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("sound of days", func(t *testing.T) {
		r := hostile(t, clip(t, "in.mka", strings.Fields("-f lavfi -i sine=duration=3 -af asetpts=PTS+floor(N/50000)*86400*10/TB -c:a flac")...))
		made(t, r, "probe", "sound")
	})
	t.Run("sound with a gap", func(t *testing.T) {
		r := hostile(t, clip(t, "in.mka", strings.Fields("-f lavfi -i sine=duration=3 -af asetpts=PTS+floor(N/70000)*60/TB -c:a flac")...))
		made(t, r, "probe", "sound")
		if r.Sound < 62 || r.Sound > 66 {
			t.Errorf("%v seconds", r.Sound)
		}
	})
}

// TestHostileStreams: a Matroska file with thousands of streams is refused; an MPEG-TS is read up
// to the limit.
func TestHostileStreams(t *testing.T) {
	refused(t, hostile(t, write(t, "many.mkv", string(manyTracks(2500)))), "max_streams")
	made(t, hostile(t, write(t, "few.mkv", string(manyTracks(ffmpeg.MostStreams)))), "probe")
	r := hostile(t, write(t, "many.ts", string(manyPrograms(12, 200))))
	made(t, r, "probe")
	if n := len(r.Source.Streams); n != ffmpeg.MostStreams {
		t.Errorf("%d streams", n)
	}
}

// manyTracks returns a Matroska file (RFC 9559) with n video tracks without frames.
func manyTracks(n int) []byte {
	element := func(id uint32, content []byte) []byte {
		b := bytes.TrimLeft(binary.BigEndian.AppendUint32(nil, id), "\x00")
		b = binary.BigEndian.AppendUint64(b, 1<<56|uint64(len(content)))
		return append(b, content...)
	}
	var tracks []byte
	for i := range n {
		number := binary.BigEndian.AppendUint16(nil, uint16(i+1))
		tracks = append(tracks, element(0xae, slices.Concat(element(0xd7, number), element(0x73c5, number), element(0x83, []byte{1}), element(0x86, []byte("V_VP8")),
			element(0xe0, slices.Concat(element(0xb0, []byte{64}), element(0xba, []byte{64})))))...)
	}
	return append(element(0x1a45dfa3, element(0x4282, []byte("matroska"))), element(0x18538067, append(element(0x1654ae6b, tracks), element(0x1f43b675, element(0xe7, []byte{0}))...))...)
}

// manyPrograms returns an MPEG-TS that consists of tables (ISO/IEC 13818-1, 2.4.4).
func manyPrograms(programs, streams int) []byte {
	var out []byte
	section := func(pid int, b []byte) {
		binary.BigEndian.PutUint16(b[1:], 0xb000|uint16(len(b)+1)) // the length of the rest, checksum included
		crc := uint32(0xffffffff)
		for _, c := range b {
			crc ^= uint32(c) << 24
			for range 8 {
				crc = crc<<1 ^ 0x04c11db7&uint32(int32(crc)>>31)
			}
		}
		b = append([]byte{0}, binary.BigEndian.AppendUint32(b, crc)...)
		for n := 0; len(b) > 0; n++ {
			packet := bytes.Repeat([]byte{0xff}, 188)
			copy(packet, []byte{0x47, byte(pid >> 8), byte(pid), 0x10 | byte(n&15)})
			if n == 0 {
				packet[1] |= 0x40
			}
			b = b[copy(packet[4:], b):]
			out = append(out, packet...)
		}
	}
	for range 20 {
		pat := []byte{0, 0, 0, 0, 1, 0xc1, 0, 0}
		for p := range programs {
			pat = append(pat, 0, byte(p+1), 0xe0, byte(0x20+p))
		}
		section(0, pat)
		for p := range programs {
			pmt := []byte{2, 0, 0, 0, byte(p + 1), 0xc1, 0, 0, 0xff, 0xff, 0xf0, 0}
			for s := range streams {
				pid := 0x100 + p*streams + s
				pmt = append(pmt, 0x1b, 0xe0|byte(pid>>8), byte(pid), 0xf0, 0)
			}
			section(0x20+p, pmt)
		}
	}
	return out
}

// TestHostileSound: impossible sample rates and numbers of channels are refused.
func TestHostileSound(t *testing.T) {
	wav := contents(t, "in.wav", "-f lavfi -i sine=duration=1")
	at := bytes.Index(wav, []byte("fmt ")) + 8
	for _, tt := range []struct {
		name           string
		channels, rate uint64
	}{{"rate", 1, 0xfffffff0}, {"high rate", 1, 0x7fffffff}, {"no rate", 1, 0}, {"one", 1, 1}, {"channels", 65535, 48000}, {"both", 65535, 0x7fffffff}, {"no channels", 0, 8000}, {"eleven", 11, 8000}} {
		t.Run(tt.name, func(t *testing.T) {
			b := bytes.Clone(wav)
			binary.LittleEndian.PutUint16(b[at+2:], uint16(tt.channels))
			binary.LittleEndian.PutUint32(b[at+4:], uint32(tt.rate))
			r := hostile(t, write(t, "in.wav", string(b)))
			if (r.Errors["sound"] == "") != (tt.name == "eleven") {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestHostileKinds: files without a usual part, and files with a misleading name, are transcoded or
// refused with a reason.
func TestHostileKinds(t *testing.T) {
	cover := clip(t, "cover.jpg", strings.Fields("-f lavfi -i testsrc2=size=64x64 -frames:v 1")...)
	song := clip(t, "song.mp3", "-f", "lavfi", "-i", "sine=duration=2", "-i", cover, "-map", "0", "-map", "1", "-c:v", "copy", "-disposition:v", "attached_pic")
	picture := clip(t, "only.m4a", "-f", "lavfi", "-i", "sine=duration=1", "-i", cover, "-map", "0", "-map", "1", "-c:v", "copy", "-disposition:v", "attached_pic")
	all := []string{"probe", "chunk0", "chunk25", "thumbs"}
	as := func(name, from, args string) string {
		return write(t, name, string(contents(t, from, args)))
	}
	for _, tt := range []struct {
		name, path string
		made       []string
	}{
		{"no sound", clip(t, "in.mp4", strings.Fields("-f lavfi -i testsrc2=size=64x64:rate=25:duration=2 "+quick)...), all},
		{"no video", clip(t, "in.mp4", strings.Fields("-f lavfi -i sine=duration=2")...), []string{"probe", "sound"}},
		{"song with a cover", song, []string{"probe", "sound"}},
		{"m4a with a cover", picture, []string{"probe", "sound"}},
		{"subtitles alone", write(t, "in.srt", srt), []string{"probe", "text"}},
		{"matroska as mp4", as("in.mp4", "in.mkv", film3), append(all, "sound")},
		{"mp4 as text", as("in.txt", "in.mp4", film3), append(all, "sound")},
		{"transport stream without a name", as("in", "in.ts", film3), append(all, "sound")},
		{"name that looks like an address", as("http:x|y.mp4", "in.mp4", film3), append(all, "sound")},
	} {
		t.Run(tt.name, func(t *testing.T) { made(t, hostile(t, tt.path), tt.made...) })
	}
	r := hostile(t, song)
	if r.Source.Streams[1].Kind != "other" {
		t.Errorf("a cover is of kind %s", r.Source.Streams[1].Kind)
	}
	refused(t, hostile(t, filepath.Join(t.TempDir(), "none")), "o such file")
	refused(t, hostile(t, t.TempDir()), "directory")
}
