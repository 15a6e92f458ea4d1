package packager_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/packager"
)

// TestSampleAES: FFmpeg decrypts and decodes encrypted samples to the same frames.
func TestSampleAES(t *testing.T) {
	e := &packager.SampleAES{Key: key, IV: iv}
	dir := t.TempDir()
	all := []*film{named(t, "picture"), named(t, "cavlc"), named(t, "sound"), named(t, "mono")}
	for _, f := range all {
		_, want := f.original(t, dir)
		plain, encrypted := f.streams(t, nil), f.streams(t, e)
		for i := range plain {
			if d := len(encrypted[i]) - len(plain[i]); d < 0 || d > 64*188 {
				t.Errorf("%s, segment %d: %d bytes encrypted, %d clear", f.name, i, len(encrypted[i]), len(plain[i]))
			}
		}
		counters(t, bytes.Join(encrypted, nil))
		path := list(t, dir, f.name, "SAMPLE-AES", encrypted)
		if n := len(packets(t, path, hls...)); n != len(want) {
			t.Errorf("%s: %d packets, want %d", f.name, n, len(want))
		}
		if f.track(t).Codec == packager.AAC {
			same(t, f.name, decoded(t, append(hls, "-i", path)...), want)
			continue
		}
		// FFmpeg does not decrypt the very last picture. Repeat a segment, so that the last picture
		// is not compared.
		path = list(t, dir, f.name+"more", "SAMPLE-AES", append(encrypted, encrypted[0]))
		got := decoded(t, append(hls, "-v", "fatal", "-i", path)...)
		same(t, f.name, got[:min(len(got), len(want))], want)
	}

	// When FFmpeg opens sound beside pictures, it reads some sound without decrypting it, and
	// complains. The played sound is right.
	path := write(t, dir, "master.m3u8", []byte("#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"a\",DEFAULT=YES,URI=\"sound.m3u8\"\n"+
		"#EXT-X-STREAM-INF:BANDWIDTH=1000000,AUDIO=\"a\"\npicture.m3u8\n"))
	want := decoded(t, "-ignore_editlist", "1", "-i", filepath.Join(dir, "sound.mp4"))
	same(t, "sound beside a picture", decoded(t, append(hls, "-v", "fatal", "-i", path, "-map", "0:a")...), want)

	f := named(t, "x265")
	var fragment packager.Fragment
	if err := fragment.Read(f.track(t), f.segments[0]); err != nil {
		t.Fatal(err)
	}
	if b, err := fragment.AppendTS([]byte("before"), e); err == nil || string(b) != "before" {
		t.Errorf("HEVC: %d bytes, %v", len(b), err)
	}
}

// TestSampleAESUnits: Apple's algorithm decrypts all NAL units.
func TestSampleAESUnits(t *testing.T) {
	for _, f := range []*film{named(t, "picture"), named(t, "slices"), named(t, "cavlc")} {
		plain, encrypted := f.streams(t, nil), f.streams(t, &packager.SampleAES{Key: key, IV: iv})
		for i := range plain {
			decrypted(t, elementary(encrypted[i]), elementary(plain[i]))
		}
	}
}

// decrypted fails the test if a decrypted elementary stream differs from the plain one, and returns
// its number of emulation prevention bytes.
func decrypted(t *testing.T, encrypted, plain []byte) (guards int) {
	t.Helper()
	got, want := splitUnits(encrypted), splitUnits(plain)
	if len(got) != len(want) {
		t.Fatalf("%d NAL units, want %d", len(got), len(want))
	}
	for i, unit := range got {
		if kind := unit[0] & 31; (kind == 1 || kind == 5) && len(unit) > 48 {
			guards += bytes.Count(unit, []byte{0, 0, 3})
			if bytes.Equal(unit, want[i]) {
				t.Fatalf("NAL unit %d is not encrypted", i)
			}
			unit = decryptUnit(unit)
		}
		if !bytes.Equal(unit, want[i]) {
			t.Fatalf("NAL unit %d of %d differs", i, len(want))
		}
	}
	return guards
}

// TestSampleAESGuards: bytes that look like start codes or like emulation prevention survive
// encryption and decryption, and start codes occur only before NAL units.
func TestSampleAESGuards(t *testing.T) {
	f := named(t, "slices")
	track := f.track(t)
	var fragment packager.Fragment
	// A segment like the first, with slices made mostly of zeros.
	segment := bytes.Clone(f.segments[0])
	file, err := mp4.DecodeFile(bytes.NewReader(f.whole()))
	if err != nil {
		t.Fatal(err)
	}
	mdat := file.Segments[0].Fragments[0].Mdat.Data
	at := bytes.Index(segment, mdat)
	for b := segment[at : at+len(mdat)]; len(b) > 0; {
		n := 4 + int(b[0])<<24 + int(b[1])<<16 + int(b[2])<<8 + int(b[3])
		for i := 200; i < n-50; i++ {
			b[i] = []byte{0, 0, 3, 0, 0, 3, 3, 0, 0, 4}[i%10]
		}
		b = b[n:]
	}
	if err := fragment.Read(track, segment); err != nil {
		t.Fatal(err)
	}
	e := &packager.SampleAES{Key: key, IV: iv}
	plain, err := fragment.AppendTS(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	size := fragment.TSSize(e)
	encrypted, err := fragment.AppendTS(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(encrypted)) > size {
		t.Errorf("%d bytes, at most %d said", len(encrypted), size)
	}
	guards := decrypted(t, elementary(encrypted), elementary(plain))
	if guards < 100 {
		t.Errorf("%d bytes prevent start codes", guards)
	}
}

// fragments returns a file's fragments in order.
func fragments(f *mp4.File) (all []*mp4.Fragment) {
	for _, s := range f.Segments {
		all = append(all, s.Fragments...)
	}
	return all
}

// TestCBCS: FFmpeg and mp4ff decrypt protected fragments to the same frames, and to the same
// bytes.
func TestCBCS(t *testing.T) {
	p := &packager.Protection{Key: key, KeyID: [16]byte{0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, IV: iv}
	for _, f := range films(t) {
		t.Run(f.name, func(t *testing.T) {
			dir := t.TempDir()
			track := f.track(t)
			init, err := packager.AppendCBCSInit([]byte("before"), f.init, p)
			if track.Codec == packager.HEVC {
				if err == nil {
					t.Fatal("it has protected HEVC")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			init = bytes.TrimPrefix(init, []byte("before"))
			whole := bytes.Clone(init)
			var fragment packager.Fragment
			for i, s := range f.segments {
				if err := fragment.Read(track, s); err != nil {
					t.Fatal(err)
				}
				b, err := fragment.AppendCBCS(whole, p)
				if err != nil {
					t.Fatal(err)
				}
				if n := int64(len(b) - len(whole)); n > fragment.CBCSSize() {
					t.Errorf("segment %d has %d bytes, at most %d said", i, n, fragment.CBCSSize())
				}
				whole = b
			}
			_, want := f.original(t, dir)
			path := write(t, dir, "cbcs.mp4", whole)
			// Ignore the index: FFmpeg 5.1 applies the last fragment's values to all fragments.
			same(t, "FFmpeg", decoded(t, "-fflags", "+ignidx", "-ignore_editlist", "1", "-decryption_key", hexKey, "-i", path), want)

			file, err := mp4.DecodeFile(bytes.NewReader(whole))
			if err != nil {
				t.Fatal(err)
			}
			if len(file.Init.Moov.Psshs) != 1 || file.Init.Moov.Psshs[0].KIDs[0].String() != "aa010203-0405-0607-0809-0a0b0c0d0e0f" {
				t.Errorf("pssh %+v", file.Init.Moov.Psshs)
			}
			how, err := mp4.DecryptInit(file.Init)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := mp4.DecodeFile(bytes.NewReader(f.whole()))
			if err != nil {
				t.Fatal(err)
			}
			changed := 0
			for i, fragment := range fragments(file) {
				encrypted := bytes.Clone(fragment.Mdat.Data)
				if err := mp4.DecryptFragment(fragment, how, key[:]); err != nil {
					t.Fatalf("segment %d: %v", i, err)
				}
				was := fragments(plain)[i].Mdat.Data
				if !bytes.Equal(fragment.Mdat.Data, was) {
					t.Errorf("segment %d: mp4ff decrypts to other bytes", i)
				}
				for k := range was {
					if was[k] != encrypted[k] {
						changed++
					}
				}
			}
			if changed < len(bytes.Join(f.segments, nil))/20 {
				t.Errorf("%d bytes of %d are encrypted", changed, len(whole))
			}
		})
	}
}

// TestCBCSOfMP4ff: the protected ranges equal mp4ff's.
func TestCBCSOfMP4ff(t *testing.T) {
	p := &packager.Protection{Key: key, KeyID: key, IV: iv}
	for _, f := range films(t) {
		track := f.track(t)
		if track.Codec != packager.H264 {
			continue
		}
		file, err := mp4.DecodeFile(bytes.NewReader(f.whole()))
		if err != nil {
			t.Fatal(err)
		}
		how, err := mp4.InitProtect(file.Init, key[:], iv[:], "cbcs", key[:], nil)
		if err != nil {
			t.Fatal(err)
		}
		var fragment packager.Fragment
		for i, s := range f.segments {
			if err := fragment.Read(track, s); err != nil {
				t.Fatal(err)
			}
			b, err := fragment.AppendCBCS(nil, p)
			if err != nil {
				t.Fatal(err)
			}
			got, err := mp4.DecodeFile(bytes.NewReader(append(bytes.Clone(f.init), b...)))
			if err != nil {
				t.Fatal(err)
			}
			want := fragments(file)[i]
			if _, err := mp4.EncryptFragment(want, key[:], iv[:], how); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(fragments(got)[0].Mdat.Data, want.Mdat.Data) {
				t.Errorf("%s, segment %d: mp4ff protects other bytes", f.name, i)
			}
		}
	}
}

// TestCBCSInHLS: FFmpeg plays protected fragments from a playlist.
func TestCBCSInHLS(t *testing.T) {
	p := &packager.Protection{Key: key, KeyID: key, IV: iv}
	f := named(t, "sound")
	dir := t.TempDir()
	init, err := packager.AppendCBCSInit(nil, f.init, p)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "init.mp4", init)
	track := f.track(t)
	var fragment packager.Fragment
	var segments [][]byte
	for _, s := range f.segments {
		if err := fragment.Read(track, s); err != nil {
			t.Fatal(err)
		}
		b, err := fragment.AppendCBCS(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		segments = append(segments, b)
	}
	path := list(t, dir, "cbcs", "SAMPLE-AES", segments)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b = []byte(strings.Replace(string(b), "#EXTINF", "#EXT-X-MAP:URI=\"init.mp4\"\n#EXTINF", 1))
	path = write(t, dir, filepath.Base(path), b)
	write(t, dir, "clear.mp4", f.whole())
	want := decoded(t, "-i", filepath.Join(dir, "clear.mp4"))
	same(t, f.name, decoded(t, append(hls, "-i", path)...), want)
	if hex.EncodeToString(key[:]) != hexKey {
		t.Error("another key")
	}
}
