package packager_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
)

// elementary returns the elementary stream of a transport stream.
func elementary(ts []byte) (all []byte) {
	for ; len(ts) > 0; ts = ts[188:] {
		p := ts[:188]
		if p[1]&31 != 1 || p[2] != 0 {
			continue
		}
		b := p[4:]
		if p[3]&0x20 != 0 {
			b = b[1+b[0]:]
		}
		if p[1]&0x40 != 0 {
			b = b[9+b[8]:]
		}
		all = append(all, b...)
	}
	return all
}

// splitUnits returns the NAL units of access units that begin with a delimiter and use start codes
// of four bytes. A unit ends at the next start code with a header behind it.
func splitUnits(b []byte) (units [][]byte) {
	for part := range bytes.SplitSeq(b, []byte{0, 0, 0, 1}) {
		if len(part) > 0 {
			units = append(units, part)
		}
	}
	return units
}

// decryptUnit follows "MPEG-2 Stream Encryption Format for HTTP Live Streaming".
func decryptUnit(unit []byte) []byte {
	var b []byte
	zeros := 0
	for _, c := range unit {
		if zeros >= 2 && c == 3 {
			zeros = 0
			continue
		}
		if zeros++; c != 0 {
			zeros = 0
		}
		b = append(b, c)
	}
	c, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err)
	}
	mode := cipher.NewCBCDecrypter(c, iv[:])
	for at := 32; len(b)-at > 16; at += 160 {
		mode.CryptBlocks(b[at:at+16], b[at:at+16])
	}
	return b
}
