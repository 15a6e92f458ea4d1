package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
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

// kindOf names the kind of a file that the libraries cannot open, by its first bytes.
func kindOf(head []byte, said *ffmpeg.Error) string {
	kind, _, _ := strings.Cut(http.DetectContentType(head), ";")
	switch {
	case len(head) == 0:
		return "the file is empty"
	case strings.HasPrefix(kind, "image/") || strings.Contains(said.Log, "_pipe]"):
		return "the file is a still picture, no video"
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

// isText says whether bytes are text: UTF-8, whose last letter may be cut off, or UTF-16 with
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
