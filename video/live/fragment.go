package live

import (
	"bytes"

	"github.com/Eyevinn/mp4ff/mp4"
)

// fragment collects the samples of a part.
type fragment struct {
	samples     []mp4.FullSample
	bytes       int
	duration    int64
	independent bool
	sequence    uint32
}

func (f *fragment) add(p *Sample, decode, duration int64) {
	flags := mp4.NonSyncSampleFlags
	if p.Key {
		flags = mp4.SyncSampleFlags
	}
	if len(f.samples) == 0 {
		f.independent = p.Key
	}
	f.samples = append(f.samples, mp4.FullSample{
		Sample:     mp4.NewSample(flags, uint32(duration), uint32(len(p.Data)), int32(p.Offset)),
		DecodeTime: uint64(decode), Data: p.Data,
	})
	f.bytes += len(p.Data)
	f.duration += duration
}

// encode returns the fragment as moof and mdat, and empties the fragment.
func (f *fragment) encode() ([]byte, error) {
	f.sequence++
	made, err := mp4.CreateFragment(f.sequence, 1)
	if err != nil {
		return nil, err
	}
	for _, s := range f.samples {
		made.AddFullSample(s)
	}
	var b bytes.Buffer
	b.Grow(f.bytes + 256 + 16*len(f.samples))
	if err := made.Encode(&b); err != nil {
		return nil, err
	}
	clear(f.samples)
	f.samples, f.bytes, f.duration = f.samples[:0], 0, 0
	return b.Bytes(), nil
}
