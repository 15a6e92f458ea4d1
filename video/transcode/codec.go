package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/Eyevinn/mp4ff/av1"
	"github.com/Eyevinn/mp4ff/avc"
	"github.com/Eyevinn/mp4ff/bits"
	"github.com/Eyevinn/mp4ff/hevc"
	"github.com/Eyevinn/mp4ff/mp4"

	"github.com/fre-engine/fre/video/media"
)

// codec is a codec of pictures, with its encoder.
type codec struct {
	encoder  string                                // the encoder's name in FFmpeg's libraries
	own      string                                // name of the option for the encoder's own parameters; "": constant quality allows no bit rate limit
	options  func(preset string) map[string]string // beside the common options
	describe describer
	sample   func(packet []byte) []byte // converts a packet to a sample of a file; does not keep packet
	bright   string                     // the profile with 10 bits; "": chosen by the encoder
}

// describer makes the sample entry of a rendition from the encoder's header. reorder is the most
// frames from decoding to showing a picture.
type describer func(track *mp4.TrakBox, r media.Rung, header []byte) (reorder int, err error)

func codecOf(name string) (*codec, error) {
	switch name {
	case "", media.H264:
		return &codec{"libx264", "x264-params", x264, describeAVC, units, "high10"}, nil
	case media.HEVC:
		return &codec{"libx265", "x265-params", x265, describeHEVC, units, "main10"}, nil
	case media.AV1:
		return &codec{"libsvtav1", "", svtAV1, describeAV1, withoutDelimiter, ""}, nil
	}
	return nil, fmt.Errorf("pictures are not encoded in %q", name)
}

// encoderOptions returns a rung's options: constant quality within the rung's bit rate, key
// frames at the start of segments, and no references across them. first tells whether the chunk
// begins the film.
//
// The bit rate is limited by a decoder buffer of two seconds. Where the limit matters, encoders
// leave the buffer half full, so later chunks begin with a half-full buffer. With the default of
// nine tenths, meant for a whole film, each chunk would spend bits already spent by the chunk
// before.
func encoderOptions(k *codec, r media.Rung, preset string, segment int, first bool) map[string]string {
	if preset == "" {
		preset = "veryfast"
	}
	o := k.options(preset)
	if r.Colour.HDR() && k.bright != "" {
		o["profile"] = k.bright
	}
	o["g"] = strconv.Itoa(segment)
	if k.own != "" {
		o["maxrate"], o["bufsize"] = strconv.FormatInt(r.BitRate, 10), strconv.FormatInt(2*r.BitRate, 10)
		o["keyint_min"], o["forced-idr"] = o["g"], "1"
		if !first {
			o[k.own] = strings.TrimPrefix(o[k.own]+":vbv-init=0.5", ":")
		}
	}
	return o
}

func x264(preset string) map[string]string {
	return map[string]string{"preset": preset, "profile": "high", "crf": "21", "sc_threshold": "0"}
}

func x265(preset string) map[string]string {
	return map[string]string{"preset": preset, "profile": "main", "crf": "24", "x265-params": "scenecut=0:open-gop=0:info=0:log-level=error"}
}

// svtAV1 maps the presets of x264 to presets of SVT-AV1 of nearly the same speed.
func svtAV1(preset string) map[string]string {
	number, ok := map[string]string{"ultrafast": "12", "superfast": "11", "veryfast": "10", "faster": "9", "fast": "8", "medium": "7", "slow": "6"}[preset]
	if !ok {
		number = "10"
	}
	return map[string]string{"preset": number, "crf": "32"}
}

// units converts a packet of H.264 or HEVC to a sample (ISO/IEC 14496-15, 4.3.3): NAL units after
// lengths instead of start codes.
func units(packet []byte) []byte { return avc.ConvertByteStreamToNaluSample(bytes.Clone(packet)) }

func describeAVC(track *mp4.TrakBox, _ media.Rung, header []byte) (reorder int, err error) {
	var sps, pps [][]byte
	for _, unit := range avc.ExtractNalusFromByteStream(header) {
		switch avc.GetNaluType(unit[0]) {
		case avc.NALU_SPS:
			sps = append(sps, unit)
		case avc.NALU_PPS:
			pps = append(pps, unit)
		}
	}
	if len(sps) == 0 || len(pps) == 0 {
		return 0, errNoHeader
	}
	set, err := avc.ParseSPSNALUnit(sps[0], true)
	if err != nil {
		return 0, err
	}
	if set.VUI != nil {
		reorder = int(set.VUI.MaxNumReorderFrames) //nolint:gosec // 16 at most (ISO/IEC 14496-10 annex E)
	}
	return reorder, track.SetAVCDescriptor("avc1", sps, pps, true)
}

var errNoHeader = errors.New("the encoder says nothing of what it makes")

func describeHEVC(track *mp4.TrakBox, _ media.Rung, header []byte) (reorder int, err error) {
	var vps, sps, pps [][]byte
	for _, unit := range avc.ExtractNalusFromByteStream(header) {
		switch hevc.GetNaluType(unit[0]) {
		case hevc.NALU_VPS:
			vps = append(vps, unit)
		case hevc.NALU_SPS:
			sps = append(sps, unit)
		case hevc.NALU_PPS:
			pps = append(pps, unit)
		}
	}
	if len(vps) == 0 || len(sps) == 0 || len(pps) == 0 {
		return 0, errNoHeader
	}
	set, err := hevc.ParseSPSNALUnit(sps[0])
	if err != nil {
		return 0, err
	}
	for _, layer := range set.SubLayeringOrderingInfos {
		reorder = max(reorder, int(layer.MaxNumReorderPics))
	}
	return reorder, track.SetHEVCDescriptor("hvc1", vps, sps, pps, nil, true)
}

// Types of open bitstream units (AV1 Bitstream & Decoding Process, 6.2.2).
const (
	sequenceHeader    = 1
	temporalDelimiter = 2
)

// unit cuts the first open bitstream unit off b (5.3) and returns its type, its content and the
// whole unit. A type of 0 means no unit.
func unit(b []byte) (kind byte, content, whole, rest []byte) {
	if len(b) < 2 || b[0]&2 == 0 { // the unit must state its size
		return 0, nil, nil, nil
	}
	head := 1 + int(b[0]>>2&1) // with an extension
	size := 0
	for shift := 0; ; shift += 7 {
		if head >= len(b) || shift > 28 {
			return 0, nil, nil, nil
		}
		size |= int(b[head]&0x7f) << shift
		head++
		if b[head-1] < 0x80 {
			break
		}
	}
	if size > len(b)-head {
		return 0, nil, nil, nil
	}
	return b[0] >> 3 & 15, b[head : head+size], b[:head+size], b[head+size:]
}

// withoutDelimiter converts a packet to a sample of AV1 (AV1 Codec ISO Media File Format Binding,
// 2.4): a temporal unit without its delimiter.
func withoutDelimiter(packet []byte) []byte {
	if kind, _, _, rest := unit(packet); kind == temporalDelimiter {
		packet = rest
	}
	return bytes.Clone(packet)
}

// describeAV1 writes an av01 sample entry (ibid., 2.2 and 2.3). The renditions have 8 or 10 bits
// in 4:2:0 (profile 0).
func describeAV1(track *mp4.TrakBox, r media.Rung, header []byte) (reorder int, err error) {
	for rest := header; ; {
		var kind byte
		var content, whole []byte
		if kind, content, whole, rest = unit(rest); kind == 0 {
			return 0, errNoHeader
		}
		if kind != sequenceHeader {
			continue
		}
		level, tier, err := levelOf(content)
		if err != nil {
			return 0, err
		}
		w, h := r.Width, r.Height
		deep := byte(0)
		if r.Colour.HDR() {
			deep = 1
		}
		track.Tkhd.Width, track.Tkhd.Height = mp4.Fixed32(w<<16), mp4.Fixed32(h<<16)
		config := &mp4.Av1CBox{CodecConfRec: av1.CodecConfRec{
			Version: 1, SeqLevelIdx0: level, SeqTier0: tier, HighBitdepth: deep, ChromaSubsamplingX: 1, ChromaSubsamplingY: 1, ConfigOBUs: bytes.Clone(whole),
		}}
		track.Mdia.Minf.Stbl.Stsd.AddChild(mp4.CreateVisualSampleEntryBox("av01", uint16(w), uint16(h), config))
		return 0, nil
	}
}

// levelOf returns seq_level_idx and seq_tier of the first operating point in a sequence header
// without decoder model times (AV1, 5.5.1).
func levelOf(header []byte) (level, tier byte, err error) {
	b := bits.NewReader(bytes.NewReader(header))
	profile, _, reduced := b.Read(3), b.Read(1), b.Read(1)
	if profile != 0 || reduced != 0 || b.Read(1) != 0 {
		return 0, 0, errors.New("a sequence header of AV1 of another kind than the encoder writes")
	}
	b.Read(1 + 5 + 12) // initial_display_delay, count of operating points, idc of the first
	level = byte(b.Read(5))
	if level > 7 {
		tier = byte(b.Read(1))
	}
	return level, tier, b.AccError()
}
