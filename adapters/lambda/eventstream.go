package lambda

import (
	"encoding/binary"
	"hash/crc32"
)

// eventStream is the media type of a stream of messages
// (smithy.io/2.0/aws/amazon-eventstream.html):
//
//	4 bytes  length of the whole message
//	4 bytes  length of the headers
//	4 bytes  CRC-32 of the first 8 bytes
//	…        headers: 1 byte length, name, 1 byte type (7: string), 2 bytes length, value
//	…        payload
//	4 bytes  CRC-32 of all preceding bytes
const eventStream = "application/vnd.amazon.eventstream"

// message encodes a message. The headers must be short strings.
func message(headers [][2]string, payload []byte) []byte {
	n := 0
	for _, h := range headers {
		n += 1 + len(h[0]) + 1 + 2 + len(h[1])
	}
	total := 12 + n + len(payload) + 4
	b := make([]byte, 0, total)
	b = binary.BigEndian.AppendUint32(b, uint32(total)) //nolint:gosec // payloads are short
	b = binary.BigEndian.AppendUint32(b, uint32(n))     //nolint:gosec // likewise
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	for _, h := range headers {
		b = append(b, byte(len(h[0])))
		b = append(b, h[0]...)
		b = append(b, 7)
		b = binary.BigEndian.AppendUint16(b, uint16(len(h[1]))) //nolint:gosec // likewise
		b = append(b, h[1]...)
	}
	b = append(b, payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}
