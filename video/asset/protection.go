package asset

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Protection is the encryption of an asset's segments in answers. On disk segments are never
// encrypted.
type Protection string

// The kinds of protection. A client with an asset's address also gets its key: a protection
// guards the copies in caches and networks on the way, and is no DRM.
const (
	Clear  Protection = ""
	AES128 Protection = "aes-128" // whole segments (RFC 8216bis section 4.4.4.4), for HLS only
	CBCS   Protection = "cbcs"    // samples: ISO/IEC 23001-7 section 10.4 in MP4, SAMPLE-AES in MPEG-TS
)

var protections = []Protection{AES128, CBCS}

// ParseProtection parses the name of a Protection. "" and "none" are Clear.
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

// Secret holds the key of a protected asset.
type Secret struct {
	Key   Bytes16 `json:"key"`
	KeyID Bytes16 `json:"key_id"`
	IV    Bytes16 `json:"iv"` // of CBCS; AES128 uses segment numbers
}

// NewSecret returns a random secret.
func NewSecret() *Secret {
	s := &Secret{}
	for _, b := range []*Bytes16{&s.Key, &s.KeyID, &s.IV} {
		_, _ = rand.Read(b[:]) // never fails
	}
	return s
}

// Bytes16 is 16 bytes, in text 32 hexadecimal digits.
type Bytes16 [16]byte

// String returns the hexadecimal digits.
func (b Bytes16) String() string { return hex.EncodeToString(b[:]) }

// MarshalText returns the hexadecimal digits.
func (b Bytes16) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText parses hexadecimal digits.
func (b *Bytes16) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(b) {
		return fmt.Errorf("%d hexadecimal digits, not %d", len(text), hex.EncodedLen(len(b)))
	}
	_, err := hex.Decode(b[:], text)
	return err
}
