package asset

import "time"

// LiveSpec is what somebody wants of a live stream. With Loop it plays that asset, over and
// over; else it waits for a publisher that knows its key.
type LiveSpec struct {
	Name   string  `json:"name"`             // in its address: lower-case letters, digits and hyphens
	Loop   string  `json:"loop,omitempty"`   // an asset's id
	Window float64 `json:"window,omitempty"` // seconds that viewers may go back; default 300
}

// LiveState is what a live stream does.
type LiveState string

// The states of a live stream.
const (
	OnAir   LiveState = "live"
	Waiting LiveState = "waiting" // for its input
)

// Live is a live stream as the API shows it.
type Live struct {
	LiveSpec
	Key       string      `json:"key,omitempty"` // that its publisher is to know
	Created   time.Time   `json:"created"`
	State     LiveState   `json:"state"`
	Error     string      `json:"error,omitempty"`     // why the last input ended
	Publisher string      `json:"publisher,omitempty"` // address
	Tracks    []LiveTrack `json:"tracks,omitempty"`
	HLS       string      `json:"hls"`
	DASH      string      `json:"dash"`
	RTMP      string      `json:"rtmp,omitempty"` // where to publish
	SRT       string      `json:"srt,omitempty"`  // likewise
	OBS       *OBS        `json:"obs,omitempty"`  // the same as OBS Studio asks for it
}

// OBS is the address to publish to as the two fields of OBS Studio's settings.
type OBS struct {
	Server string `json:"server"`
	Key    string `json:"key"`
}

// LiveTrack is one track of a live stream.
type LiveTrack struct {
	Name       string  `json:"name"` // in addresses: v720p, a0
	Kind       string  `json:"kind"` // video, audio
	Codec      string  `json:"codec"`
	BitRate    int64   `json:"bit_rate,omitempty"` // 0: not known before it is measured
	Width      int     `json:"width,omitempty"`
	Height     int     `json:"height,omitempty"`
	FrameRate  float64 `json:"frame_rate,omitempty"` // 0: not known
	SampleRate int     `json:"sample_rate,omitempty"`
	Channels   int     `json:"channels,omitempty"`
	Language   string  `json:"language,omitempty"`
}
