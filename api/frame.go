package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// UpgradeProtocol is the value of the Upgrade header for /v1/run and for a container's attach
// route. After the server's 101, both sides send frames over the connection:
//
//	 0      1            4             8
//	+------+------------+-------------+----------------
//	| kind | zero       | len         | payload (len bytes)
//	| u8   | 3 bytes    | u32, big-e. |
//	+------+------------+-------------+----------------
//
// The header is the one of Docker's multiplexed streams, so Docker tools can read the frames. A
// payload has at most MaxFrame bytes.
//
//	client                                server
//	  | Stdin ---------------------------> |  empty payload: end of input
//	  | <---------------------------- More |  one Stdin was consumed
//	  | Kill ----------------------------> |  ends the whole sandbox; leaves a container
//	  | Resize --------------------------> |  of an attachment: the client's terminal
//	  | <------------------ Stdout, Stderr |
//	  | <--------------------- Exit (JSON) |  or Error (JSON); then the server closes
//
// The client may have StdinWindow Stdin frames without a More in flight. The server therefore
// never stops reading, and notices a Kill or a disconnect. A disconnect ends a run's sandbox, but
// only detaches from a container.
const UpgradeProtocol = "fre-run"

// MaxFrame is the maximum payload of a frame, in bytes.
const MaxFrame = 64 << 10

// StdinWindow is the maximum number of Stdin frames without a More.
const StdinWindow = 4

// FrameKind is the type of a frame.
type FrameKind uint8

// The kinds of frames.
const (
	FrameStdin  FrameKind = 0
	FrameStdout FrameKind = 1
	FrameStderr FrameKind = 2
	FrameExit   FrameKind = 3 // Exit as JSON
	FrameError  FrameKind = 4 // Error as JSON
	FrameKill   FrameKind = 5 // empty
	FrameMore   FrameKind = 6 // empty
	FrameResize FrameKind = 7 // a TerminalSize
)

// TerminalSize is the size of a terminal, in characters.
type TerminalSize struct{ Rows, Columns uint16 }

// Payload returns s as the payload of a Resize frame: rows u16, columns u16, big-endian.
func (s TerminalSize) Payload() []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Rows), s.Columns)
}

// ParseTerminalSize parses the payload of a Resize frame.
func ParseTerminalSize(payload []byte) (TerminalSize, error) {
	if len(payload) != 4 {
		return TerminalSize{}, fmt.Errorf("malformed size of a terminal: % x", payload)
	}
	return TerminalSize{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])}, nil
}

// AppendFrame appends one frame to b. Payload has at most MaxFrame bytes.
func AppendFrame(b []byte, kind FrameKind, payload []byte) []byte {
	b = append(b, byte(kind), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// ReadFrame reads one frame. The payload is a part of buf, which must have MaxFrame bytes, and
// is valid until the next call. io.EOF means that the peer closed the stream between frames.
func ReadFrame(r io.Reader, buf []byte) (FrameKind, []byte, error) {
	var header [8]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(header[4:])
	if header[1] != 0 || header[2] != 0 || header[3] != 0 || header[0] > byte(FrameResize) || n > MaxFrame {
		return 0, nil, fmt.Errorf("malformed frame header % x", header)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, fmt.Errorf("read frame: %w", err)
	}
	return FrameKind(header[0]), buf[:n], nil
}
