package httpserver

import "encoding/binary"

// A frame of HTTP/2 (RFC 9113 section 4.1):
//
//	length 24 | kind 8 | flags 8 | 0 1 | stream 31 | payload
const (
	frameHead    = 9
	maxFrame     = 16 << 10 // bytes of payload accepted from a client, the protocol's default
	maxSentFrame = 64 << 10 // bytes of payload sent at most, if the client accepts more than the default
)

type frameKind uint8

const (
	frameData frameKind = iota
	frameHeaders
	framePriority
	frameReset
	frameSettings
	framePush
	framePing
	frameGoAway
	frameWindow
	frameContinuation
)

const (
	flagEndStream  = 0x01
	flagAck        = 0x01 // of SETTINGS and PING
	flagEndHeaders = 0x04
	flagPadded     = 0x08
	flagPriority   = 0x20
)

const (
	settingTableSize        = 1
	settingPush             = 2
	settingStreams          = 3
	settingWindow           = 4
	settingFrame            = 5
	settingHeadSize         = 6
	maxWindow               = 1<<31 - 1
	initialWindow           = 65535
	defaultTable            = 4096 // bytes of the header table, the protocol's default
	preface                 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	prefaceLine             = "PRI * HTTP/2.0\r\n"
	priorityLength          = 5
	settingLength           = 6
	pingLength              = 8
	streamIDMask     uint32 = 1<<31 - 1
)

// errorCode is the reason for the end of a stream or connection (RFC 9113 section 7).
type errorCode uint32

const (
	codeNone errorCode = iota
	codeProtocol
	codeInternal
	codeFlowControl
	codeSettingsTimeout
	codeStreamClosed
	codeFrameSize
	codeRefused
	codeCancel
	codeCompression
	codeConnect
	codeCalm
)

// connError ends an HTTP/2 connection.
type connError struct {
	code   errorCode
	reason string
}

func (e *connError) Error() string { return e.reason }

// frame is a received frame. Its payload is a slice of the input buffer.
type frame struct {
	kind    frameKind
	flags   uint8
	id      uint32
	payload []byte
}

// parseFrame parses the first frame of b and returns its length in bytes, 0 if b is too short.
func parseFrame(b []byte) (f frame, n int, err error) {
	if len(b) < frameHead {
		return frame{}, 0, nil
	}
	length := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	f = frame{kind: frameKind(b[3]), flags: b[4], id: binary.BigEndian.Uint32(b[5:]) & streamIDMask}
	if length > maxFrame {
		return f, 0, &connError{codeFrameSize, "a frame of more than 16384 bytes"}
	}
	if len(b) < frameHead+length {
		return f, 0, nil
	}
	f.payload = b[frameHead : frameHead+length]
	return f, frameHead + length, nil
}

// unpad removes the padding (RFC 9113 section 6.1) and the priority of HEADERS. Priorities are
// ignored, except that a stream must not depend on itself.
func (f *frame) unpad() error {
	p := f.payload
	pad := 0
	if f.flags&flagPadded != 0 {
		if len(p) == 0 {
			return &connError{codeFrameSize, "a padded frame without a length of padding"}
		}
		pad, p = int(p[0]), p[1:]
	}
	if f.kind == frameHeaders && f.flags&flagPriority != 0 {
		if len(p) < priorityLength {
			return &connError{codeFrameSize, "HEADERS frame without the announced priority"}
		}
		if binary.BigEndian.Uint32(p)&streamIDMask == f.id {
			return &connError{codeProtocol, "stream depends on itself"}
		}
		p = p[priorityLength:]
	}
	if pad > len(p) {
		return &connError{codeProtocol, "more padding than frame"}
	}
	f.payload = p[:len(p)-pad]
	return nil
}

func appendFrameHead(b []byte, length int, kind frameKind, flags uint8, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), flags)
	return binary.BigEndian.AppendUint32(b, stream)
}

func appendReset(b []byte, stream uint32, code errorCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHead(b, 4, frameReset, 0, stream), uint32(code))
}

func appendWindowUpdate(b []byte, stream uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHead(b, 4, frameWindow, 0, stream), uint32(n))
}

func appendGoAway(b []byte, last uint32, code errorCode, reason string) []byte {
	b = appendFrameHead(b, 8+len(reason), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, reason...)
}

// appendSettings takes pairs of setting and value.
func appendSettings(b []byte, settings ...uint32) []byte {
	b = appendFrameHead(b, len(settings)/2*settingLength, frameSettings, 0, 0)
	for i := 0; i+1 < len(settings); i += 2 {
		b = binary.BigEndian.AppendUint16(b, uint16(settings[i]))
		b = binary.BigEndian.AppendUint32(b, settings[i+1])
	}
	return b
}
