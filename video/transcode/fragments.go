package transcode

import (
	"fmt"
	"io"
	"slices"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/media"
)

// Limits of a track in memory, in bytes.
const (
	mostOfRung  = 400 << 20
	mostOfSound = 1152 << 20 // enough for [media.MostSound]
)

// fragments is a fragmented MP4 of a single track, in memory.
type fragments struct {
	made   media.Made
	parts  [][]byte         // initialisation segment and fragments; separate slices avoid copies as they grow
	size   int              // total bytes
	limit  int              // most bytes
	number int              // number of fragments before these
	open   []mp4.FullSample // samples of the unfinished fragment
}

// shifted adds an edit list that subtracts units from a track's times. Libavformat and browsers
// follow such an edit (ISO/IEC 14496-12, 8.6.6). Negative composition offsets do not work:
// libavformat shifts all times by the most negative offset.
func shifted(track *mp4.TrakBox, units int64) {
	list := &mp4.ElstBox{Version: 1, Entries: []mp4.ElstEntry{{MediaTime: units, MediaRateInteger: 1}}}
	track.AddChild(&mp4.EdtsBox{Elst: []*mp4.ElstBox{list}, Children: []mp4.Box{list}})
}

// begin writes the initialisation segment, with mvex after the track (RFC 8216, 3.3).
func (f *fragments) begin(init *mp4.InitSegment) error {
	init.Moov.Children = append(slices.DeleteFunc(init.Moov.Children, func(b mp4.Box) bool { return b == init.Moov.Mvex }), init.Moov.Mvex)
	n, err := f.add(init)
	f.made.Init = n
	return err
}

// add writes a box as a part and returns its size.
func (f *fragments) add(box interface {
	Size() uint64
	Encode(to io.Writer) error
},
) (int, error) {
	b := make([]byte, 0, box.Size())
	if err := box.Encode(writer{&b}); err != nil {
		return 0, err
	}
	if f.size += len(b); f.size > f.limit {
		return 0, fmt.Errorf("what is made has more than %d bytes", f.limit)
	}
	f.parts = append(f.parts, b)
	return len(b), nil
}

// cut makes a fragment of the samples since the last cut.
func (f *fragments) cut() error {
	if len(f.open) == 0 {
		return nil
	}
	fragment, err := mp4.CreateFragment(uint32(f.number+len(f.made.Segments)+1), 1)
	if err != nil {
		return err
	}
	for _, s := range f.open {
		fragment.AddFullSample(s)
	}
	n, err := f.add(fragment)
	if err != nil {
		return err
	}
	f.made.Segments = append(f.made.Segments, n)
	f.open = f.open[:0]
	return nil
}

// writer appends to a byte slice.
type writer struct{ to *[]byte }

func (w writer) Write(p []byte) (int, error) {
	*w.to = append(*w.to, p...)
	return len(p), nil
}
