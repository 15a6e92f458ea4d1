package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fre-engine/fre/video/ffmpeg"
)

// unread adds the kind of the file to the libraries' error, for the person who sent it.
func unread(path string, err error) error {
	var said *ffmpeg.Error
	if !errors.As(err, &said) {
		return err
	}
	f, opened := os.Open(path)
	if opened != nil {
		return opened
	}
	defer f.Close()
	head := make([]byte, 4096)
	n, read := io.ReadFull(f, head)
	if read != nil && !errors.Is(read, io.EOF) && !errors.Is(read, io.ErrUnexpectedEOF) {
		return read
	}
	return fmt.Errorf("%s: %w", kindOf(head[:n], said), err)
}

// kindOf names the kind of an unreadable file, by its first bytes.
func kindOf(head []byte, said *ffmpeg.Error) string {
	kind, _, _ := strings.Cut(http.DetectContentType(head), ";")
	switch {
	case len(head) == 0:
		return "the file is empty"
	case strings.HasPrefix(kind, "image/") || strings.Contains(said.Log, "_pipe]") || isTarga(head):
		return "the file is a still picture, no video"
	case kind == "audio/midi":
		return "the file has notes, no sound"
	case strings.Contains(said.Log, "not on whitelist") || strings.Contains(said.Log, "of this format are not read"):
		return "files of this format are not taken"
	case len(bytes.Trim(head, "\x00")) == 0:
		return "the file begins with zeros alone: it was not copied whole"
	case strings.Contains(said.Log, "moov atom not found"):
		return "the file is cut off: the index that MP4 has at its end is missing; send all of it"
	case isText(head):
		return "the file is text, no video"
	case strings.HasPrefix(kind, "video/") || strings.HasPrefix(kind, "audio/") || kind == "application/ogg":
		return "the file is cut off or broken: it begins as " + kind + " does"
	case kind != "application/octet-stream":
		return "the file is " + kind + ", no video"
	}
	return "the file is of no format that is known here"
}

// isTarga reports whether b starts with the header of a picture in Truevision's TGA 2.0 (C.1 to
// C.5), a format without a magic number:
//
//	length of the id | colour map: 0, 1 | type | map: first, length, bits | x, y, width, height | bits | descriptor
//	1                  1                  1      2      2       1      2  2  2      2        1      1
func isTarga(b []byte) bool {
	if len(b) < 18 || b[1] > 1 || b[17]>>6 != 0 {
		return false
	}
	mapped, kind := map[byte]bool{1: true, 9: true, 2: false, 3: false, 10: false, 11: false}[b[2]]
	sizes := func(bits byte) bool { return slices.Contains([]byte{8, 15, 16, 24, 32}, bits) }
	return kind && mapped == (b[1] == 1) && (b[1] == 0 || sizes(b[7])) && b[12]|b[13] != 0 && b[14]|b[15] != 0 && sizes(b[16])
}

// isText reports whether b is text: UTF-8, possibly cut within the last character, or UTF-16 with
// a byte order mark.
func isText(b []byte) bool {
	if bytes.HasPrefix(b, []byte("\xff\xfe")) || bytes.HasPrefix(b, []byte("\xfe\xff")) {
		return true
	}
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			return len(b) < utf8.UTFMax && !utf8.FullRune(b)
		}
		if unicode.IsControl(r) && !unicode.IsSpace(r) && r != '\x1b' {
			return false
		}
		b = b[size:]
	}
	return true
}
