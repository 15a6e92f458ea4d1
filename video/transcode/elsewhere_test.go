package transcode_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/Eyevinn/mp4ff/mp4"
	"golang.org/x/sys/unix"
)

// watch returns a function that counts the openings of a file since its last call.
func watch(t *testing.T, path string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	return func() int {
		b := make([]byte, 4096)
		n, err := unix.Read(fd, b)
		if err != nil {
			return 0 // EAGAIN: no event
		}
		return n / unix.SizeofInotifyEvent
	}
}

// alias is a reference of QuickTime to another file in FFmpeg's reading: type 2 is a path from the
// root on.
func alias(path string) []byte {
	b := make([]byte, 4+10+1+27+12+1+63+16)                 // flags, volume, name
	b = append(b, 0xff, 0xff, 0xff, 0xff)                   // levels
	b = append(b, make([]byte, 16)...)                      //
	b = binary.BigEndian.AppendUint16(b, 2)                 // a path
	b = binary.BigEndian.AppendUint16(b, uint16(len(path))) //
	b = append(b, path...)
	if len(path)%2 != 0 {
		b = append(b, 0)
	}
	return append(b, 0xff, 0xff, 0, 0)
}

// TestHostileElsewhere: a source that lists or references files or network addresses opens none of
// them, under any file name.
func TestHostileElsewhere(t *testing.T) {
	secret := clip(t, "secret.mp4", strings.Fields(film3)...)
	b, err := os.ReadFile(secret)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var called atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			called.Add(1)
			_ = c.Close()
		}
	}()
	defer func() {
		_ = l.Close()
		<-done
		if n := called.Load(); n != 0 {
			t.Errorf("the network was asked %d times", n)
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	web := fmt.Sprintf("http://127.0.0.1:%d/x", port)
	referring, err := mp4.DecodeFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	payload := alias(secret)
	for _, track := range referring.Moov.Traks {
		dref := track.Mdia.Minf.Dinf.Dref
		dref.Children = []mp4.Box{mp4.CreateUnknownBox("alis", uint64(8+len(payload)), payload)}
	}
	var quicktime bytes.Buffer
	if err := referring.Encode(&quicktime); err != nil {
		t.Fatal(err)
	}
	opened := watch(t, secret)
	if f, err := os.Open(secret); err != nil || opened() != 1 {
		t.Fatalf("opening %s is not seen, %v", secret, err)
	} else {
		_ = f.Close()
	}
	list := func(head, line string) string {
		var b strings.Builder
		b.WriteString(head)
		for _, to := range []string{secret, "file:" + secret, web, "/etc/passwd"} {
			fmt.Fprintf(&b, line, to)
		}
		return b.String()
	}
	hls := list("#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:3\n", "#EXTINF:3,\n%s\n") + "#EXT-X-ENDLIST\n"
	for _, tt := range []struct{ name, content string }{
		{"list.m3u8", hls},
		{"list.mp4", hls},
		{"master.m3u8", list("#EXTM3U\n", "#EXT-X-STREAM-INF:BANDWIDTH=1\n%s\n")},
		{"key.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXT-X-KEY:METHOD=AES-128,URI=\"" + web + "\"\n#EXT-X-MAP:URI=\"" + secret + "\"\n#EXTINF:3,\nx.ts\n#EXT-X-ENDLIST\n"},
		{"list.ffconcat", list("ffconcat version 1.0\n", "file '%s'\n")},
		{"concat.mkv", list("ffconcat version 1.0\n", "file '%s'\n")},
		{"manifest.mpd", `<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT3S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period><AdaptationSet mimeType="video/mp4"><Representation id="0" bandwidth="1"><BaseURL>` + secret + `</BaseURL><SegmentBase indexRange="0-9"/></Representation></AdaptationSet></Period></MPD>`},
		{"call.sdp", fmt.Sprintf("v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\na=control:rtsp://127.0.0.1:%d/\nm=video 0 RTP/AVP/TCP 96\na=rtpmap:96 H264/90000\n", port)},
		{"redirect.asx", `<asx version="3.0"><entry><ref href="` + web + `"/></entry></asx>`},
		{"list.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\n" + secret + "\n"},
		{"chapters.txt", ";FFMETADATA1\nartist=" + secret + "\n"},
		{"script.avs", "DirectShowSource(\"" + secret + "\")\n"},
		{"quicktime.mov", quicktime.String()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := hostile(t, write(t, tt.name, tt.content))
			if n := opened(); n != 0 {
				t.Errorf("another file was opened %d times", n)
			}
			switch filepath.Ext(tt.name) {
			case ".vtt":
				made(t, r, "probe", "text")
			case ".mov":
				made(t, r, "probe") // without the data it refers to
			case ".m3u8", ".ffconcat", ".mpd", ".sdp":
				refused(t, r, "files of this format are not read")
			default:
				refused(t, r, "")
			}
		})
	}
	for _, name := range []string{"concat:" + secret + "|" + secret, "subfile,,start,0,end,0,,:" + secret, "crypto:" + secret, web, "data:text/plain,x", "pipe:0", "async:" + secret} {
		t.Run(strings.Split(name, ":")[0], func(t *testing.T) {
			refused(t, hostile(t, name), "o such file")
			if n := opened(); n != 0 {
				t.Errorf("another file was opened %d times", n)
			}
		})
	}
}
