// Package ffmpeg is what a transcoder needs of FFmpeg's libraries (libavformat, libavcodec,
// libavfilter of 5.1, as Debian has them), by cgo and without copies: packets and frames
// stay in the libraries' memory, and Go sees them through slices.
//
// Whoever makes something here releases it: an [Input], [Decoder], [Encoder] or [Graph] by
// Close, a [Packet] or [Frame] by Close, what one holds by Unref. A slice that
// [Packet.Data] or [Frame.Plane] has returned is valid until then, no longer: after Unref
// both panic, and with [Check] what a slice still shows is overwritten, so that tests see
// who reads too late. [Live] counts what has not been released.
//
// Nothing here may be used by two goroutines at once. The libraries decode and encode with
// threads of their own, as many as they are told.
//
// The libraries are LGPL, some of what Debian builds them with (libx264) GPL: a program
// that links this package is under the GPL as a whole. FRE's transcoder is such a program,
// in a process of its own; neither the engine nor the video service links it.
package ffmpeg
