package transcode_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/fre-engine/fre/video/transcode"
)

// TestUnread: the error for a source without video names the source's kind: empty, text, a part of
// a video, another known kind, or an unknown format.
func TestUnread(t *testing.T) {
	checkLeaks(t)
	film := func(name string) []byte {
		b, err := os.ReadFile(clip(t, name, strings.Fields("-f lavfi -i testsrc2=size=64x64:rate=25:duration=2 -c:v libx264")...))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	still := func(name string, args ...string) []byte {
		b, err := os.ReadFile(clip(t, name, append(strings.Fields("-f lavfi -i testsrc2=size=64x64 -frames:v 1"), args...)...))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	mp4 := film("film.mp4")
	var wide bytes.Buffer
	wide.WriteString("\xff\xfe")
	for _, c := range utf16.Encode([]rune(strings.Repeat("Grüße aus Köln\r\n", 20))) {
		wide.Write([]byte{byte(c), byte(c >> 8)})
	}
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"nothing", nil, "the file is empty"},
		{"text", []byte(strings.Repeat("this is a letter, and no film at all\n", 300)), "is text"},
		{"a page", []byte("<!DOCTYPE html><html><body>404 not found</body></html>"), "is text"},
		{"json", []byte(`{"error": "not found"}`), "is text"},
		{"text that ends within a letter", []byte("no film … ü")[:12], "is text"},
		{"text of 16 bits", wide.Bytes(), "is text"},
		{"zeros", make([]byte, 100_000), "zeros"},
		{"half of an MP4", mp4[:len(mp4)/2], "is cut off"},
		{"the head of a Matroska", film("film.mkv")[:40], "cut off or broken: it begins as video/webm"},
		{"an archive", append([]byte("PK\x03\x04"), bytes.Repeat([]byte{7, 200, 13, 0, 255}, 4000)...), "is application/zip"},
		{"a document", append([]byte("%PDF-1.7\n"), bytes.Repeat([]byte{7, 200, 13, 0, 255}, 4000)...), "is application/pdf"},
		{"a photograph", still("still.jpg"), "is a still picture"},
		{"a drawing", still("still.bmp"), "is a still picture"},
		{"a drawing without a magic number", still("still.tga"), "is a still picture"},
		{"one in grey", still("grey.tga", "-pix_fmt", "gray"), "is a still picture"},
		{"one with a palette, not packed", still("palette.tga", "-pix_fmt", "pal8", "-rle", "0"), "is a still picture"},
		{"notes", append([]byte("MThd\x00\x00\x00\x06\x00\x01\x00\x02\x01\xe0MTrk"), bytes.Repeat([]byte{0, 0x90, 60, 100}, 100)...), "has notes"},
		{"noise", bytes.Repeat([]byte{0x80, 1, 0xfe, 3, 0x91, 0}, 4000), "of no format that is known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "in")
			if err := os.WriteFile(path, tt.file, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := transcode.Probe(path, 100); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
		})
	}
}
