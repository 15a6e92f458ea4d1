package media

// Fraction is a rate or a unit of time.
type Fraction struct {
	Num int `json:"num"`
	Den int `json:"den"`
}

// Grid is the timing of a video's frames: frame n is shown n ÷ Rate seconds after the start of
// the source. All renditions share a grid, so their segments are aligned.
type Grid struct {
	Rate    Fraction `json:"rate"`    // frames per second
	Segment int      `json:"segment"` // frames per segment; the last segment may have fewer
}

// Chunk asks for a few segments of a video in every rung. A sandbox makes all rungs from one
// decoding. Chunks are independent of each other.
type Chunk struct {
	Source string  `json:"source"` // name in /work/sources
	Stream int     `json:"stream"` // index of the stream
	Grid   Grid    `json:"grid"`
	From   int     `json:"from"` // first frame, also the first of a segment
	To     int     `json:"to"`   // the frame after the last; -1: the source's end
	Offset float64 `json:"offset"`
	Joined bool    `json:"joined,omitempty"` // the source's times jump
	Rungs  []Rung  `json:"rungs"`
	Preset string  `json:"preset,omitempty"` // of x264 and x265, mapped for SVT-AV1; default veryfast

	Threads int `json:"threads,omitempty"` // 0: the number of CPUs

	// Blank asks for black pictures up to To. The source is not opened.
	Blank bool `json:"blank,omitempty"`
}

// Chunked is the head of the answer to [Chunk]: a line of JSON. The bytes of each rung follow.
type Chunked struct {
	Frames int    `json:"frames"` // of each rung; 0 if the source has ended before
	Rungs  []Made `json:"rungs"`
}

// Made is a rung of a chunk: the initialisation segment (ftyp, moov), then a fragment (moof,
// mdat) for each segment.
type Made struct {
	Init     int   `json:"init"`     // bytes of the initialisation segment
	Segments []int `json:"segments"` // bytes of each fragment
}

// Probe asks for the contents of a source. The answer is a [Source].
type Probe struct {
	Source string  `json:"source"` // name in /work/sources
	Most   float64 `json:"most"`   // seconds; a longer stated duration is verified
}

// Sound asks for a whole track of sound. The answer is a [Made] as a line of JSON, then its
// bytes.
type Sound struct {
	Source  string  `json:"source"`
	Stream  int     `json:"stream"`
	Segment float64 `json:"segment"`            // approximate seconds of each segment
	Offset  float64 `json:"offset"`             // start of the source, in its own time
	Joined  bool    `json:"joined,omitempty"`   // the source's times jump
	BitRate int64   `json:"bit_rate,omitempty"` // default 128,000
	Most    float64 `json:"most,omitempty"`     // seconds; the rest is left out; 0: all
}

// Limits of answers, whatever the source.
const (
	MostStreams = 128       // of a [Source]
	MostSound   = 16 * 3600 // seconds of a track of sound, which a sandbox holds in memory
	MostThumbs  = 2000      // pictures of [Sheets]; beyond, the interval is multiplied
)

// Thumbs asks for small pictures of a video, one per Interval seconds from 0 on. The answer is a
// [Sheets] and the sheets as JPEG, all of the same size. The unused rest of the last sheet is
// black.
type Thumbs struct {
	Source   string  `json:"source"`
	Stream   int     `json:"stream"`
	Offset   float64 `json:"offset"`           // start of the source, in its own time
	Joined   bool    `json:"joined,omitempty"` // the source's times jump
	Interval float64 `json:"interval"`         // seconds
	Width    int     `json:"width"`            // of each picture in pixels; the aspect ratio is kept
	Columns  int     `json:"columns"`          // on a sheet
	Rows     int     `json:"rows"`
	Most     float64 `json:"most,omitempty"` // seconds; no pictures of the rest; 0: all
}

// Sheets is the head of the answer to [Thumbs].
type Sheets struct {
	Width  int   `json:"width"` // of each picture, in pixels
	Height int   `json:"height"`
	Count  int   `json:"count"`  // pictures on all sheets
	Sheets []int `json:"sheets"` // bytes of each

	Interval float64 `json:"interval"` // as asked for, or a multiple if this made too many pictures
}

// Text asks for a track of subtitles. The answer is WebVTT. Subtitles in the form of pictures
// have no text.
type Text struct {
	Source string  `json:"source"`
	Stream int     `json:"stream"`
	Offset float64 `json:"offset"`           // start of the source, in its own time
	Joined bool    `json:"joined,omitempty"` // the source's times jump
}
