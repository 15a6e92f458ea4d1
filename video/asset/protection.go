package asset

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Protection is how an asset's segments are encrypted when they are served. They are stored
// as they are.
type Protection string

// The ways of protection. Whoever is given an asset's address gets its key too: what they
// protect is what caches and networks in between keep.
const (
	Clear  Protection = ""
	AES128 Protection = "aes-128" // segments as a whole (RFC 8216bis section 4.4.4.4), for HLS alone
	CBCS   Protection = "cbcs"    // samples: ISO/IEC 23001-7 section 10.4 in MP4, SAMPLE-AES in MPEG-TS
)

var protections = []Protection{AES128, CBCS}

// ParseProtection is the Protection of a name; that of "" and "none" is Clear.
func ParseProtection(s string) (Protection, error) {
	p := Protection(s)
	switch {
	case p == Clear || p == "none":
		return Clear, nil
	case slices.Contains(protections, p):
		return p, nil
	}
	var names []string
	for _, p := range protections {
		names = append(names, string(p))
	}
	return Clear, fmt.Errorf("protection %q: %s or none", s, strings.Join(names, ", "))
}

// Secret is what an asset's segments are encrypted by.
type Secret struct {
	Key   Bytes16 `json:"key"`
	KeyID Bytes16 `json:"key_id"`
	IV    Bytes16 `json:"iv"` // of CBCS: AES128 has the segments' numbers
}

// NewSecret is one that nobody knows.
func NewSecret() *Secret {
	s := &Secret{}
	for _, b := range []*Bytes16{&s.Key, &s.KeyID, &s.IV} {
		_, _ = rand.Read(b[:]) // never fails
	}
	return s
}

// Bytes16 are 16 bytes, in hexadecimal digits where they are written.
type Bytes16 [16]byte

// String are the digits.
func (b Bytes16) String() string { return hex.EncodeToString(b[:]) }

// MarshalText writes the digits.
func (b Bytes16) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads them.
func (b *Bytes16) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(b) {
		return fmt.Errorf("%d hexadecimal digits, not %d", len(text), hex.EncodedLen(len(b)))
	}
	_, err := hex.Decode(b[:], text)
	return err
}
