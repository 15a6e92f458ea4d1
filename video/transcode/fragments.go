package transcode

import (
	"fmt"

	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/media"
)

// mostBytes of what is made of a track: it is in memory until it is given out.
const mostBytes = 400 << 20

// fragments are a fragmented MP4 of one track in memory.
type fragments struct {
	made   media.Made
	bytes  []byte
	number int              // of fragments that come before these
	open   []mp4.FullSample // of the one that is not whole
}

// begin writes the initialisation segment.
func (f *fragments) begin(init *mp4.InitSegment) error {
	err := init.Encode(writer{&f.bytes})
	f.made.Init = len(f.bytes)
	return err
}

// cut makes a fragment of the samples that have come since the last.
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
	before := len(f.bytes)
	if err := fragment.Encode(writer{&f.bytes}); err != nil {
		return err
	}
	if len(f.bytes) > mostBytes {
		return fmt.Errorf("what is made has more than %d bytes", mostBytes)
	}
	f.made.Segments = append(f.made.Segments, len(f.bytes)-before)
	f.open = f.open[:0]
	return nil
}

// writer appends.
type writer struct{ to *[]byte }

func (w writer) Write(p []byte) (int, error) {
	*w.to = append(*w.to, p...)
	return len(p), nil
}
