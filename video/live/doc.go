// Package live serves live streams as HLS with parts (RFC 8216bis) and as DASH. Viewers may go
// back within a window.
//
//	a loop over an asset ─┐
//	RTMP ─────────────────┼→ samples → [Stream]: parts in memory, segments in files → [Server]
//	SRT ──────────────────┘
//
// Go code copies a publisher's access units into fragments and decodes nothing. FFmpeg opens
// media in sandboxes only, never in this process.
//
// A [Stream] goes through epochs. A new epoch begins when a publisher comes or comes back, when
// the service starts again and when the input's clock jumps. The stream has a single clock, which
// begins with the stream: an epoch's samples follow the samples of the epoch before, after a gap.
// HLS announces a new epoch by a discontinuity, DASH by a period.
package live
