package media

// Fraction is a rate or a unit of time.
type Fraction struct {
	Num int `json:"num"`
	Den int `json:"den"`
}

// Grid says where a video's frames are: frame n is shown n ÷ Rate seconds after the source
// begins. All of its renditions have the same, so that their segments are aligned.
type Grid struct {
	Rate    Fraction `json:"rate"`    // frames each second
	Segment int      `json:"segment"` // frames of each segment, the last one's fewer
}

// Chunk asks for some segments of a video in every rung. A sandbox makes them from one
// decoding; chunks are independent of each other.
type Chunk struct {
	Source string  `json:"source"` // file name below /work
	Stream int     `json:"stream"` // index
	Grid   Grid    `json:"grid"`
	From   int     `json:"from"` // frame, the first of a segment
	To     int     `json:"to"`   // the frame after the last; -1 for the source's end
	Offset float64 `json:"offset"`
	Joined bool    `json:"joined,omitempty"` // the times of the source jump
	Rungs  []Rung  `json:"rungs"`
	Preset string  `json:"preset,omitempty"` // of x264; veryfast if it is not given

	Threads int `json:"threads,omitempty"` // 0: as many as there are CPUs

	// Blank asks for black pictures in place of the source's, which is not opened: To is
	// where they end.
	Blank bool `json:"blank,omitempty"`
}

// Chunked is the head of the answer to [Chunk]: JSON and a line feed, behind which each
// rung's bytes follow.
type Chunked struct {
	Frames int    `json:"frames"` // that each rung has; 0 where the source has ended before
	Rungs  []Made `json:"rungs"`
}

// Made is one rung of a chunk: the initialisation segment (ftyp, moov), and a fragment (moof,
// mdat) for each segment.
type Made struct {
	Init     int   `json:"init"`     // bytes
	Segments []int `json:"segments"` // bytes of each
}

// Probe asks what is in a source, which is answered by a [Source].
type Probe struct {
	Source string  `json:"source"` // file name below /work
	Most   float64 `json:"most"`   // seconds: a longer duration is not believed before it is looked at
}

// Sound asks for a track of sound, all of it. The answer is a [Made] and its bytes, as that
// to [Chunk] is.
type Sound struct {
	Source  string  `json:"source"`
	Stream  int     `json:"stream"`
	Segment float64 `json:"segment"`            // seconds of each, nearly
	Offset  float64 `json:"offset"`             // when the source begins, in its own time
	Joined  bool    `json:"joined,omitempty"`   // the times of the source jump
	BitRate int64   `json:"bit_rate,omitempty"` // 128,000 if it is not given
	Most    float64 `json:"most,omitempty"`     // seconds: what comes later is left out; 0 for all
}

// What answers have at most, whatever a source has.
const (
	MostStreams = 128       // of a [Source]
	MostSound   = 16 * 3600 // seconds that a track of sound goes on: a sandbox has it in memory
	MostThumbs  = 2000      // pictures of [Sheets]: where there were more, they are at a multiple of the interval
)

// Thumbs asks for small pictures of a video, one each Interval seconds from 0 on, on sheets.
// The answer is a [Sheets] and the sheets, JPEG each, all of the same size: where the last
// has no more pictures, it is black.
type Thumbs struct {
	Source   string  `json:"source"`
	Stream   int     `json:"stream"`
	Offset   float64 `json:"offset"`           // when the source begins, in its own time
	Joined   bool    `json:"joined,omitempty"` // the times of the source jump
	Interval float64 `json:"interval"`         // seconds
	Width    int     `json:"width"`            // of each in pixels; it keeps its shape
	Columns  int     `json:"columns"`          // of a sheet
	Rows     int     `json:"rows"`
	Most     float64 `json:"most,omitempty"` // seconds: of what comes later there are none; 0 for all
}

// Sheets is the head of the answer to [Thumbs].
type Sheets struct {
	Width  int   `json:"width"` // of each picture, in pixels
	Height int   `json:"height"`
	Count  int   `json:"count"`  // pictures on all sheets
	Sheets []int `json:"sheets"` // bytes of each

	Interval float64 `json:"interval"` // as asked for, or a multiple where those would be too many
}

// Text asks for a track of subtitles, which is answered as WebVTT. Subtitles that are
// pictures have no text.
type Text struct {
	Source string  `json:"source"`
	Stream int     `json:"stream"`
	Offset float64 `json:"offset"`           // when the source begins, in its own time
	Joined bool    `json:"joined,omitempty"` // the times of the source jump
}
