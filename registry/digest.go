package registry

import (
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"hash"
	"regexp"
	"strings"
)

// digest names content: ALGORITHM:HEX, with an algorithm that the registry supports.
type digest struct{ algorithm, hex string }

// The algorithms that the image-spec registers.
const (
	sha256Name = "sha256"
	sha512Name = "sha512"
)

// Errors in a digest.
var (
	errDigestSyntax     = errors.New("is not a digest, for example sha256:e3b0…")
	errUnknownAlgorithm = errors.New("has an unsupported algorithm: use sha256 or sha512")
	errDigestLength     = errors.New("has the wrong length, or characters other than lower-case hexadecimal digits")
)

func (d digest) String() string { return d.algorithm + ":" + d.hex }

// path returns the digest as two components of a path.
func (d digest) path() string { return d.algorithm + "/" + d.hex }

// short returns a shortened digest, to save memory.
func (d digest) short() string { return d.algorithm[3:4] + d.hex[:32] }

// newHash returns a hash for the algorithm, or nil if the registry does not support it.
func newHash(algorithm string) hash.Hash {
	switch algorithm {
	case sha256Name:
		return sha256.New()
	case sha512Name:
		return sha512.New()
	}
	return nil
}

// digestSyntax is the image-spec's grammar of digests, for any algorithm.
var digestSyntax = regexp.MustCompile(`^[a-z0-9]+([+._-][a-z0-9]+)*:[a-zA-Z0-9=_-]+$`)

// parseDigest accepts digests of the supported algorithms.
func parseDigest(s string) (digest, error) {
	if !digestSyntax.MatchString(s) {
		return digest{}, errDigestSyntax
	}
	algorithm, hex, _ := strings.Cut(s, ":")
	h := newHash(algorithm)
	if h == nil {
		return digest{}, errUnknownAlgorithm
	}
	if len(hex) != 2*h.Size() || strings.Trim(hex, "0123456789abcdef") != "" {
		return digest{}, errDigestLength
	}
	return digest{algorithm, hex}, nil
}
