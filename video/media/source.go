package media

// Source is the result of a probe.
type Source struct {
	Format   string   `json:"format"`             // the container, by FFmpeg's name
	Duration float64  `json:"duration"`           // seconds
	Offset   float64  `json:"offset"`             // start of the source, in its own time
	BitRate  int64    `json:"bit_rate,omitempty"` // bits per second
	Streams  []Stream `json:"streams"`
	Missing  float64  `json:"missing,omitempty"` // seconds announced by the container but missing at the end: the file was cut off
	Joins    int      `json:"joins,omitempty"`   // number of jumps in the times; the parts are joined without gaps
	Picture  int      `json:"picture"`           // index of the chosen stream of pictures; -1: none
	Unseen   string   `json:"unseen,omitempty"`  // why no stream of pictures is chosen although the file has some
}

// Stream is a stream of a [Source].
type Stream struct {
	Index    int     `json:"index"`
	Kind     string  `json:"kind"` // video, audio, subtitle, other
	Codec    string  `json:"codec"`
	Duration float64 `json:"duration,omitempty"` // seconds
	BitRate  int64   `json:"bit_rate,omitempty"`
	Language string  `json:"language,omitempty"` // BCP 47
	Title    string  `json:"title,omitempty"`
	Default  bool    `json:"default,omitempty"`

	Width     int      `json:"width,omitempty"` // pixels as shown: upright and square
	Height    int      `json:"height,omitempty"`
	Rotation  int      `json:"rotation,omitempty"` // degrees clockwise, to turn the picture upright
	Mirrored  bool     `json:"mirrored,omitempty"` // left and right swapped, before the rotation
	FrameRate Fraction `json:"frame_rate,omitzero"`

	Interlaced bool   `json:"interlaced,omitempty"` // a picture holds two: the odd and the even lines
	Colour     Colour `json:"colour,omitzero"`

	SampleRate int `json:"sample_rate,omitempty"`
	Channels   int `json:"channels,omitempty"`
}
