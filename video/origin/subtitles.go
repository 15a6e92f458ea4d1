package origin

import (
	"bytes"
	"fmt"
	"os"

	"github.com/fre-engine/fre/video/packager"
)

// textInTS returns the text NAME.vtt with a map from its times to time stamps of MPEG-TS (RFC
// 8216bis section 3.1.4).
func (s *shelf) textInTS(name []byte) (it item, ok bool) {
	base, ok := bytes.CutSuffix(name, []byte(".vtt"))
	r := s.rows[string(base)]
	if !ok || r == nil || r.of.Kind != "text" {
		return item{}, false
	}
	return item{kind: "text/vtt; charset=utf-8", keep: forever, tag: `"` + s.asset.Made + "-" + r.of.Name + `-ts.vtt"`, by: &stamping{shelf: s, row: r}}, true
}

// stamping adds timeStamps to a stored text.
type stamping struct {
	shelf *shelf
	row   *row
	file  *os.File
	size  int64
}

// timeStamps is inserted after a text's first line.
var timeStamps = fmt.Sprintf("X-TIMESTAMP-MAP=MPEGTS:%d,LOCAL:00:00:00.000\n", packager.Zero)

// open implements maker.
func (t *stamping) open() (most int64, err error) {
	if t.file, err = t.shelf.open(t.row.of.Name + ".vtt"); err != nil {
		return 0, err
	}
	info, err := t.file.Stat()
	if err != nil {
		return 0, err
	}
	t.size = info.Size()
	return t.size + int64(len("\n")+len(timeStamps)), nil
}

// append implements maker.
func (t *stamping) append(dst []byte) ([]byte, error) {
	text := make([]byte, t.size)
	if _, err := t.file.ReadAt(text, 0); err != nil {
		return nil, err
	}
	head, cues, _ := bytes.Cut(text, []byte{'\n'})
	dst = append(append(dst, head...), '\n')
	return append(append(dst, timeStamps...), cues...), nil
}

// close implements maker. The shelf closes the file.
func (t *stamping) close() error { return nil }
