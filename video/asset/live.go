package asset

import "time"

// LiveSpec specifies a live stream. With Loop, the stream plays an asset over and over. Without,
// the stream waits for a publisher with its key.
type LiveSpec struct {
	Name   string  `json:"name"`             // in the stream's address: lower-case letters, digits and hyphens
	Loop   string  `json:"loop,omitempty"`   // id of an asset
	Window float64 `json:"window,omitempty"` // how far viewers may go back, in seconds; default 300
}

// LiveState is the state of a live stream.
type LiveState string

// The states of a live stream.
const (
	OnAir   LiveState = "live"
	Waiting LiveState = "waiting" // for an input
)

// Live is a live stream in the API.
type Live struct {
	LiveSpec
	Key       string      `json:"key,omitempty"` // for the publisher
	Created   time.Time   `json:"created"`
	State     LiveState   `json:"state"`
	Error     string      `json:"error,omitempty"`     // why the last input ended
	Publisher string      `json:"publisher,omitempty"` // network address
	Tracks    []LiveTrack `json:"tracks,omitempty"`
	HLS       string      `json:"hls"`
	DASH      string      `json:"dash"`
	RTMP      string      `json:"rtmp,omitempty"` // address to publish to
	SRT       string      `json:"srt,omitempty"`  // address to publish to
	OBS       *OBS        `json:"obs,omitempty"`  // the address to publish to, in the form of OBS Studio
}

// OBS is a publishing address as the two fields of OBS Studio's settings.
type OBS struct {
	Server string `json:"server"`
	Key    string `json:"key"`
}

// LiveTrack is a track of a live stream.
type LiveTrack struct {
	Name       string  `json:"name"` // in addresses: v720p, a0
	Kind       string  `json:"kind"` // video, audio
	Codec      string  `json:"codec"`
	BitRate    int64   `json:"bit_rate,omitempty"` // 0: not measured yet
	Width      int     `json:"width,omitempty"`
	Height     int     `json:"height,omitempty"`
	FrameRate  float64 `json:"frame_rate,omitempty"` // 0: unknown
	SampleRate int     `json:"sample_rate,omitempty"`
	Channels   int     `json:"channels,omitempty"`
	Language   string  `json:"language,omitempty"`
}
