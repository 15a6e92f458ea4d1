package live

import (
	"errors"
	"path/filepath"

	"github.com/fre-engine/fre/video/asset"
)

// Track is a track of a live input.
type Track struct {
	asset.LiveTrack
	TimeScale int64  `json:"time_scale"`
	Init      []byte `json:"init"` // initialisation segment with track id 1
}

// named reports whether the track's name can be a file's and its kind is known.
func (t *Track) named() bool {
	return t.Name == filepath.Base(t.Name) && filepath.IsLocal(t.Name) && (t.Kind == "video" || t.Kind == "audio")
}

// Sample is an access unit in MP4's form: of H.264, NAL units after their lengths.
type Sample struct {
	Decode int64 // decoding time in the track's time scale, on the input's own clock
	Offset int64 // from decoding to presentation
	Key    bool
	Data   []byte // immutable after Write
}

// Limits of an input.
const (
	mostSample  = 8 << 20 // bytes
	mostPart    = 16 << 20
	mostSegment = 64 << 20
	mostHeld    = 32 << 20 // bytes of a track's parts in memory
	mostTracks  = 16
)

// Errors of an input.
var (
	errClosed  = errors.New("the stream is closed")
	errTracks  = errors.New("the tracks are not what can be served")
	errBacklog = errors.New("a part has more bytes than allowed")
)
