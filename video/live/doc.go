// Package live serves live streams: HLS with parts (RFC 8216bis) and DASH, with a window that
// viewers may go back in.
//
//	a loop over an asset ─┐
//	RTMP ─────────────────┼→ samples → [Stream]: parts in memory, segments in files → [Server]
//	SRT ──────────────────┘
//
// What a publisher sends is not decoded: its access units are put into fragments as they
// are, by Go alone. So nothing here opens media with FFmpeg; that is a sandbox's to do.
//
// A [Stream] goes through epochs. One begins whenever its input does: a publisher that comes
// (back), a service that has started again, a clock that has jumped. All times of a stream
// are of one clock, which begins with the stream, so that an epoch's samples follow those of
// the last one after a gap: HLS tells of it by a discontinuity, DASH by a period.
package live
