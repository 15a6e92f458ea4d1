package media

// Source is what a probe finds in a file.
type Source struct {
	Format   string   `json:"format"`             // the container, as FFmpeg names it
	Duration float64  `json:"duration"`           // seconds
	Offset   float64  `json:"offset"`             // when it begins, in its own time
	BitRate  int64    `json:"bit_rate,omitempty"` // bits each second
	Streams  []Stream `json:"streams"`
	Missing  float64  `json:"missing,omitempty"` // seconds at the end that the container announces and the file does not have: it was cut off
	Joins    int      `json:"joins,omitempty"`   // how often its times jump: what follows is joined to what is before
	Picture  int      `json:"picture"`           // index of the stream of pictures that is taken; -1: there is none
	Unseen   string   `json:"unseen,omitempty"`  // why none is taken though there are some
}

// Stream is one of a [Source].
type Stream struct {
	Index    int     `json:"index"`
	Kind     string  `json:"kind"` // video, audio, subtitle, other
	Codec    string  `json:"codec"`
	Duration float64 `json:"duration,omitempty"` // seconds
	BitRate  int64   `json:"bit_rate,omitempty"`
	Language string  `json:"language,omitempty"` // BCP 47
	Title    string  `json:"title,omitempty"`
	Default  bool    `json:"default,omitempty"`

	Width     int      `json:"width,omitempty"` // pixels as shown: turned upright, and square
	Height    int      `json:"height,omitempty"`
	Rotation  int      `json:"rotation,omitempty"` // degrees clockwise that it was turned
	Mirrored  bool     `json:"mirrored,omitempty"` // left for right, before that
	FrameRate Fraction `json:"frame_rate,omitzero"`

	Interlaced bool   `json:"interlaced,omitempty"` // a picture is two, of odd and of even lines
	Colour     Colour `json:"colour,omitzero"`

	SampleRate int `json:"sample_rate,omitempty"`
	Channels   int `json:"channels,omitempty"`
}
