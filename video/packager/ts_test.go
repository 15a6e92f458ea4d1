package packager_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/packager"
)

// streams packages a film's segments.
func (f *film) streams(t testing.TB, e *packager.SampleAES) [][]byte {
	t.Helper()
	track := f.track(t)
	var fragment packager.Fragment
	var all [][]byte
	for i, s := range f.segments {
		if err := fragment.Read(track, s); err != nil {
			t.Fatalf("%s, segment %d: %v", f.name, i, err)
		}
		size := fragment.TSSize(e)
		b, err := fragment.AppendTS([]byte("before"), e)
		if err != nil {
			t.Fatalf("%s, segment %d: %v", f.name, i, err)
		}
		b = bytes.TrimPrefix(b, []byte("before"))
		if n := int64(len(b)); n > size || e == nil && n != size || n%188 != 0 {
			t.Errorf("%s, segment %d has %d bytes, said %d", f.name, i, n, size)
		}
		all = append(all, b)
	}
	return all
}

// frame is ffprobe's description of a frame.
type frame struct {
	Time    string `json:"pts_time"`
	Decoded string `json:"dts_time"`
	Key     string `json:"flags"`
}

func packets(t testing.TB, path string, args ...string) []frame {
	t.Helper()
	out := run(t, "ffprobe", append(append([]string{"-v", "warning"}, args...), "-show_entries", "packet=pts_time,dts_time,flags", "-of", "json", path)...)
	var all struct{ Packets []frame }
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return all.Packets
}

// decoded returns the hash of each frame that ffmpeg decodes. A message of ffmpeg fails the test.
func decoded(t testing.TB, args ...string) []string {
	t.Helper()
	out := run(t, "ffmpeg", append(append([]string{"-v", "warning", "-nostdin"}, args...), "-fps_mode", "passthrough", "-f", "framemd5", "-")...)
	var all []string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") {
			fields := strings.Split(line, ",")
			all = append(all, strings.TrimSpace(fields[len(fields)-1]))
		}
	}
	return all
}

// same fails the test if frames differ.
func same(t testing.TB, what string, got, want []string) {
	t.Helper()
	if len(want) == 0 || len(got) != len(want) {
		t.Errorf("%s: %d frames, want %d", what, len(got), len(want))
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: frame %d of %d differs", what, i, len(want))
			return
		}
	}
}

// original returns a film's own frames, none removed by an edit list.
func (f *film) original(t testing.TB, dir string) (path string, frames []string) {
	t.Helper()
	path = write(t, dir, f.name+".mp4", f.whole())
	return path, decoded(t, "-ignore_editlist", "1", "-i", path)
}

// TestTS: transport streams decode to the fragments' frames, at the same times plus ten seconds,
// and the continuity counters continue over segments.
func TestTS(t *testing.T) {
	for _, f := range films(t) {
		t.Run(f.name, func(t *testing.T) {
			dir := t.TempDir()
			path, want := f.original(t, dir)
			streams := f.streams(t, nil)
			ts := write(t, dir, "whole.ts", bytes.Join(streams, nil))
			same(t, "all segments", decoded(t, "-i", ts), want)
			counters(t, bytes.Join(streams, nil))

			times, from, to := f.times(t), packets(t, path), packets(t, ts)
			if len(from) != len(to) || len(times) != len(to) {
				t.Fatalf("%d packets, want %d", len(to), len(from))
			}
			before := math.Inf(-1)
			for i := range to {
				was, is, at := times[i], number(t, to[i].Time), number(t, to[i].Decoded)
				if math.Abs(is-was-10) > 1.5/90000 {
					t.Errorf("packet %d is presented at %v, was at %v", i, is, was)
				}
				if at > is || at <= before {
					t.Errorf("packet %d is presented at %v, decoded at %v, the one before at %v", i, is, at, before)
				}
				if from[i].Key[0] != to[i].Key[0] {
					t.Errorf("packet %d: flags %q, were %q", i, to[i].Key, from[i].Key)
				}
				before = at
			}
			// Each segment can be played alone.
			n := 0
			for i, s := range streams {
				n += len(decoded(t, "-i", write(t, dir, strconv.Itoa(i)+".ts", s)))
			}
			if n != len(want) {
				t.Errorf("segment by segment there are %d frames, want %d", n, len(want))
			}
		})
	}
}

// TestParts: a segment of several fragments, as in a live stream, is packaged completely.
func TestParts(t *testing.T) {
	for _, f := range []*film{named(t, "picture"), named(t, "sound"), named(t, "x264")} {
		dir := t.TempDir()
		_, want := f.original(t, dir)
		joined := &film{name: f.name, init: f.init, segments: [][]byte{bytes.Join(f.segments, nil)}}
		ts := joined.streams(t, nil)[0]
		counters(t, ts)
		same(t, f.name, decoded(t, "-i", write(t, dir, "joined.ts", ts)), want)

		p := &packager.Protection{Key: key, IV: iv}
		init, err := packager.AppendCBCSInit(nil, f.init, p)
		if err != nil {
			t.Fatal(err)
		}
		var fragment packager.Fragment
		if err := fragment.Read(f.track(t), joined.segments[0]); err != nil {
			t.Fatal(err)
		}
		b, err := fragment.AppendCBCS(init, p)
		if err != nil {
			t.Fatal(err)
		}
		path := write(t, dir, "joined.mp4", b)
		same(t, f.name, decoded(t, "-fflags", "+ignidx", "-ignore_editlist", "1", "-decryption_key", hexKey, "-i", path), want)
	}
}

func number(t testing.TB, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// counters fails the test if packets are missing, or if clock references go back or are more than
// 100 ms apart.
func counters(t testing.TB, b []byte) {
	t.Helper()
	next := map[int]byte{}
	clock := int64(-1)
	for at := 0; at < len(b); at += 188 {
		p := b[at : at+188]
		if p[0] != 0x47 {
			t.Fatalf("no packet at %d", at)
		}
		pid := int(p[1]&31)<<8 | int(p[2])
		if want, ok := next[pid]; ok && p[3]&15 != want {
			t.Fatalf("a packet of %#x at %d has the counter %d, want %d", pid, at, p[3]&15, want)
		}
		next[pid] = (p[3] + 1) & 15
		if p[3]&0x20 != 0 && p[4] > 0 && p[5]&0x10 != 0 {
			v := int64(p[6])<<25 | int64(p[7])<<17 | int64(p[8])<<9 | int64(p[9])<<1 | int64(p[10])>>7
			if clock >= 0 && (v <= clock || v-clock > 9000) {
				t.Errorf("clock references %d and %d", clock, v)
			}
			clock = v
		}
	}
}

var (
	key = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	iv  = [16]byte{0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0}
)

const (
	hexKey = "0102030405060708090a0b0c0d0e0f10"
	hexIV  = "ffeeddccbbaa99887766554433221100"
)

// list writes segments and a playlist for them.
func list(t testing.TB, dir, name, method string, segments [][]byte) string {
	t.Helper()
	write(t, dir, "key", key[:])
	var all strings.Builder
	all.WriteString("#EXTM3U\n#EXT-X-VERSION:5\n#EXT-X-TARGETDURATION:4\n#EXT-X-PLAYLIST-TYPE:VOD\n")
	if method != "" {
		all.WriteString("#EXT-X-KEY:METHOD=" + method + ",URI=\"key\",IV=0x" + hexIV + "\n")
	}
	for i, s := range segments {
		file := name + strconv.Itoa(i) + ".ts"
		write(t, dir, file, s)
		all.WriteString("#EXTINF:2,\n" + file + "\n")
	}
	all.WriteString("#EXT-X-ENDLIST\n")
	return write(t, dir, name+".m3u8", []byte(all.String()))
}

// hls is ffmpeg's options to play playlists in files.
var hls = []string{"-allowed_extensions", "ALL", "-protocol_whitelist", "file,crypto"}

// TestAES128: OpenSSL decrypts to the transport stream, and FFmpeg plays it.
func TestAES128(t *testing.T) {
	for _, f := range []*film{named(t, "x264"), named(t, "sound")} {
		dir := t.TempDir()
		_, want := f.original(t, dir)
		var encrypted [][]byte
		for i, s := range f.streams(t, nil) {
			b := packager.AppendAES128([]byte("before"), s, &key, &iv)[len("before"):]
			if int64(len(b)) != packager.AES128Size(int64(len(s))) {
				t.Errorf("%d bytes, said %d", len(b), packager.AES128Size(int64(len(s))))
			}
			path := write(t, dir, "encrypted", b)
			if got := run(t, "openssl", "enc", "-d", "-aes-128-cbc", "-K", hexKey, "-iv", hexIV, "-in", path); !bytes.Equal(got, s) {
				t.Errorf("%s, segment %d: OpenSSL has other bytes", f.name, i)
			}
			if b2 := packager.AppendAES128(s[:0:len(s)], s, &key, &iv); !bytes.Equal(b, b2) {
				t.Errorf("%s, segment %d: other bytes in place", f.name, i)
			}
			encrypted = append(encrypted, b)
		}
		path := list(t, dir, "aes", "AES-128", encrypted)
		same(t, f.name, decoded(t, append(hls, "-i", path)...), want)
	}
	for n := range 50 {
		plain := bytes.Repeat([]byte{7}, n)
		b := packager.AppendAES128(nil, plain, &key, &iv)
		cmd := exec.CommandContext(t.Context(), "openssl", "enc", "-d", "-aes-128-cbc", "-K", hexKey, "-iv", hexIV)
		cmd.Stdin = bytes.NewReader(b)
		if got, err := cmd.Output(); err != nil || !bytes.Equal(got, plain) || int64(len(b)) != packager.AES128Size(int64(n)) {
			t.Errorf("%d bytes: %v, %x", n, err, got)
		}
	}
}

// TestAllocations: with large enough buffers, packaging allocates nothing, for any number of
// samples.
func TestAllocations(t *testing.T) {
	e, p := &packager.SampleAES{Key: key, IV: iv}, &packager.Protection{Key: key, IV: iv}
	for _, f := range []*film{named(t, "picture"), named(t, "sound"), named(t, "slices")} {
		track := f.track(t)
		var fragment packager.Fragment
		to := make([]byte, 0, 4*len(f.segments[0]))
		for name, what := range map[string]func() ([]byte, error){
			"TS":         func() ([]byte, error) { return fragment.AppendTS(to, nil) },
			"SAMPLE-AES": func() ([]byte, error) { return fragment.AppendTS(to, e) },
			"cbcs":       func() ([]byte, error) { return fragment.AppendCBCS(to, p) },
		} {
			if n := testing.AllocsPerRun(10, func() {
				if err := fragment.Read(track, f.segments[0]); err != nil {
					t.Fatal(err)
				}
				if _, err := what(); err != nil {
					t.Fatal(err)
				}
			}); n > 0 {
				t.Errorf("%s of %s: %v allocations", name, f.name, n)
			}
		}
		if n := testing.AllocsPerRun(10, func() { packager.AppendAES128(to, f.segments[0], &key, &iv) }); n > 0 {
			t.Errorf("AES-128: %v allocations", n)
		}
	}
}
