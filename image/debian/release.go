package debian

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

const maxRelease = 16 << 20

// inRelease is a verified InRelease file.
type inRelease struct {
	origin, suite, codename string
	validUntil              time.Time // zero: unlimited
	byHash                  bool
	files                   map[string]fileHash // path below dists/SUITE
}

type fileHash struct {
	sha256 string
	size   int64
}

// keyring reads the keys that may sign s.
func (s *Source) keyring() (openpgp.EntityList, error) {
	var all openpgp.EntityList
	add := func(name string, b []byte) error {
		read := openpgp.ReadKeyRing
		if bytes.Contains(b, []byte("-----BEGIN PGP")) {
			read = openpgp.ReadArmoredKeyRing
		}
		l, err := read(bytes.NewReader(b))
		if err != nil {
			return fmt.Errorf("keyring %s: %w", name, err)
		}
		all = append(all, l...)
		return nil
	}
	if len(s.Keys) > 0 {
		if err := add("in Signed-By", s.Keys); err != nil {
			return nil, err
		}
	}
	for _, p := range s.Keyrings {
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("keyring: %w", err)
		}
		if err := add(p, b); err != nil {
			return nil, err
		}
	}
	if len(s.Fingerprints) > 0 {
		all = slices.DeleteFunc(all, func(e *openpgp.Entity) bool { return !hasFingerprint(e, s.Fingerprints) })
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no key for %s", s.Suite)
	}
	return all, nil
}

// verify checks the signature and parses only the signed text.
func (s *Source) verify(data []byte, keys openpgp.EntityList, now time.Time) (*inRelease, error) {
	block, rest := clearsign.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%w: not a clearsigned file", ErrSignature)
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%w: data after the signature", ErrSignature)
	}
	// A release is signed by several keys, old and new. A single known key that has not expired is
	// enough, so verify tries each known key alone.
	sig, err := io.ReadAll(block.ArmoredSignature.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	cause := errors.New("no keys")
	for i := range keys {
		config := &packet.Config{Time: func() time.Time { return now }}
		_, cause = openpgp.CheckDetachedSignature(keys[i:i+1], bytes.NewReader(block.Bytes), bytes.NewReader(sig), config)
		if cause == nil {
			break
		}
	}
	if cause != nil {
		return nil, fmt.Errorf("%w by any of the %d keys of %s: %w", ErrSignature, len(keys), s.Suite, cause)
	}
	r, err := parseRelease(block.Plaintext)
	if err != nil {
		return nil, err
	}
	if r.codename != s.Suite && r.suite != s.Suite {
		return nil, fmt.Errorf("the release file is of %s (%s), not of %s", r.codename, r.suite, s.Suite)
	}
	return r, nil
}

// hasFingerprint reports whether the primary key or a subkey has one of the fingerprints.
func hasFingerprint(e *openpgp.Entity, fingerprints []string) bool {
	own := []string{strings.ToUpper(hex.EncodeToString(e.PrimaryKey.Fingerprint))}
	for _, k := range e.Subkeys {
		own = append(own, strings.ToUpper(hex.EncodeToString(k.PublicKey.Fingerprint)))
	}
	return slices.ContainsFunc(own, func(f string) bool { return slices.Contains(fingerprints, f) })
}

// parseRelease reads the fields of a Release file; see the Debian wiki, RepositoryFormat.
func parseRelease(b []byte) (*inRelease, error) {
	r := &inRelease{files: map[string]fileHash{}}
	got := false
	want := map[string]bool{"origin": true, "suite": true, "codename": true, "valid-until": true, "acquire-by-hash": true}
	// SHA256 has some thousand lines: a loop reads them without joining.
	head, sums := splitField(b, "SHA256")
	err := readParagraphs(bytes.NewReader(head), want, func(p paragraph) error {
		if got {
			return errors.New("several paragraphs")
		}
		got = true
		r.origin, r.suite, r.codename = p["origin"], p["suite"], p["codename"]
		r.byHash = p["acquire-by-hash"] == "yes"
		if v := p["valid-until"]; v != "" {
			t, err := parseDate(v)
			if err != nil {
				return fmt.Errorf("Valid-Until: %w", err)
			}
			r.validUntil = t
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("release file: %w", err)
	}
	for l := range bytes.Lines(sums) {
		f := strings.Fields(string(l))
		if len(f) == 0 {
			continue
		}
		h, ok := parseSum(f)
		if !ok {
			return nil, fmt.Errorf("release file: bad SHA256 line %.80q", l)
		}
		r.files[f[2]] = h
	}
	if len(r.files) == 0 {
		return nil, errors.New("release file: no SHA256 sums")
	}
	return r, nil
}

// parseDate accepts RFC 1123 and days without a leading zero.
func parseDate(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC1123, strings.Replace(s, "UTC", "GMT", 1))
	if err != nil {
		t, err = time.Parse("Mon, _2 Jan 2006 15:04:05 MST", s)
	}
	return t, err
}

// parseSum reads the fields digest, size and path of a line.
func parseSum(f []string) (fileHash, bool) {
	if len(f) != 3 || len(f[0]) != 64 {
		return fileHash{}, false
	}
	if _, err := hex.DecodeString(f[0]); err != nil {
		return fileHash{}, false
	}
	n, err := strconv.ParseInt(f[1], 10, 64)
	return fileHash{strings.ToLower(f[0]), n}, err == nil && n >= 0
}

// splitField cuts the continuation lines of one field out of a paragraph.
func splitField(b []byte, name string) (rest, lines []byte) {
	inside := false
	for l := range bytes.Lines(b) {
		if l[0] != ' ' && l[0] != '\t' {
			inside = bytes.HasPrefix(l, []byte(name+":"))
		} else if inside {
			lines = append(lines, l...)
			continue
		}
		rest = append(rest, l...)
	}
	return rest, lines
}
