// Package packager makes other containers and encryptions of fragmented MP4, as they are
// asked for: MPEG transport streams, clear, by AES-128 or by SAMPLE-AES, and MP4 under the
// cbcs scheme.
//
//	init segment ── ReadTrack ──> Track
//	segment ── Fragment.Read ──> Fragment ──┬─ AppendTS ──> TS ── AppendAES128 ──> AES-128
//	                                        └─ AppendCBCS ──> MP4 under cbcs
//
// What is read has one track, of H.264 (avc1, avc3), HEVC (hvc1, hev1) or AAC (mp4a), and
// comes from files that nobody has to trust: whatever is not as it should be is ErrInput.
// What is made is appended to the caller's buffer, of a size that can be asked for before.
package packager

import "errors"

// ErrInput is what all errors of this package are: what was given is broken off, broken, or
// of a kind that cannot be packaged.
var ErrInput = errors.New("it cannot be packaged")

// Codec of a track.
type Codec uint8

const (
	H264 Codec = iota + 1
	HEVC
	AAC
)

// Track is what an initialisation segment says of its one track. It is not changed by its
// use, which may be at the same time, and keeps nothing of the segment's bytes.
type Track struct {
	Codec     Codec
	TimeScale uint32 // units of a second
}

// ReadTrack reads an initialisation segment (ISO/IEC 14496-12).
func ReadTrack(init []byte) (*Track, error) { return nil, ErrInput }

// Fragment is a segment that has been read: views into its bytes, which must stay as they
// are until it has been packaged. The zero value is ready; one that is read into again, such
// as from a pool, allocates nothing. It is for one goroutine at a time.
type Fragment struct {
	track *Track
}

// Read reads a segment of a track: one or more pairs of moof and mdat, with other boxes
// between them or none.
func (f *Fragment) Read(t *Track, segment []byte) error { return ErrInput }

// SampleAES is the key of a transport stream's samples, and the initialisation vector with
// which each of them begins ("MPEG-2 Stream Encryption Format for HTTP Live Streaming").
type SampleAES struct {
	Key, IV [16]byte
}

// TSSize is how many bytes AppendTS appends: exactly for a clear stream, where e is nil;
// at most for an encrypted one.
func (f *Fragment) TSSize(e *SampleAES) int64 { return 0 }

// AppendTS appends the segment as an MPEG transport stream (ISO/IEC 13818-1, RFC 8216
// section 3.2) of one program with one elementary stream. It is encrypted by e unless that
// is nil; HEVC cannot be.
//
// Zero of the track's presentation, edit list applied, has the time stamp 10 s in all
// renditions. Continuity counters go on over segments whose sequence numbers follow each
// other, whoever makes them.
func (f *Fragment) AppendTS(dst []byte, e *SampleAES) ([]byte, error) { return dst, ErrInput }

// AES128Size is how many bytes AppendAES128 appends for so many.
func AES128Size(plain int64) int64 { return plain&^15 + 16 }

// AppendAES128 appends what HLS calls AES-128: all of plain by CBC with the padding of
// PKCS #7 (RFC 8216 section 4.3.2.4). AppendAES128(b[:0], b, …) encrypts in place.
func AppendAES128(dst, plain []byte, key, iv *[16]byte) []byte { return dst }

// Protection is the key of a track under the cbcs scheme (ISO/IEC 23001-7 section 10.4), its
// name, and the initialisation vector of all samples.
type Protection struct {
	Key, KeyID, IV [16]byte
}

// AppendCBCSInit appends an initialisation segment that says how the track is encrypted; it
// is for the system of the W3C with keys from outside ("Clear Key") and whoever else knows
// the key by its name.
func AppendCBCSInit(dst, init []byte, p *Protection) ([]byte, error) { return dst, ErrInput }

// CBCSSize is at most how many bytes AppendCBCS appends.
func (f *Fragment) CBCSSize() int64 { return 0 }

// AppendCBCS appends the segment encrypted under cbcs: of video one block in ten behind each
// slice's header, of sound all whole blocks of a sample. A segment index (sidx) is left out.
func (f *Fragment) AppendCBCS(dst []byte, p *Protection) ([]byte, error) { return dst, ErrInput }
