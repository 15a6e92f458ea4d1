// Package ffmpeg binds the parts of FFmpeg's libraries a transcoder needs (libavformat,
// libavcodec, libavfilter of 5.1, as in Debian), by cgo and without copies: packets and frames
// stay in the libraries' memory, and Go sees them as slices.
//
// The caller releases every object: an [Input], [Decoder], [Encoder], [Graph], [Packet] or
// [Frame] by Close, the content of a packet or frame by Unref. A slice returned by [Packet.Data]
// or [Frame.Plane] is valid until then. After Unref both methods panic. With [Check] the memory
// of a released slice is overwritten, so tests detect late reads. [Live] counts the unreleased
// objects.
//
// No object is safe for concurrent use. The libraries decode and encode with their own threads,
// in the requested number.
//
// The libraries are LGPL, but Debian links them with GPL libraries (libx264): a program with this
// package is under the GPL as a whole. FRE's transcoder is such a program, in its own process.
// Neither the engine nor the video service links this package.
package ffmpeg
