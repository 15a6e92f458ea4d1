package store

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

const digestPrefix = "sha256:"

// emptyDigest is the digest of no bytes.
const emptyDigest Digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// sumDigest returns the digest of b.
func sumDigest(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest(digestPrefix + hex.EncodeToString(sum[:]))
}

// hex returns the digest without its algorithm. File names use this form, because a colon would
// end a directory in overlayfs mount options.
func (d Digest) hex() string { return strings.TrimPrefix(string(d), digestPrefix) }

func (d Digest) check() error {
	h, ok := strings.CutPrefix(string(d), digestPrefix)
	if !ok || len(h) != 2*sha256.Size || !isHex(h) {
		return fmt.Errorf("malformed digest %q", string(d))
	}
	return nil
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// ErrTree is wrapped by every refusal of a tree manifest.
var ErrTree = errors.New("malformed tree manifest")

// check refuses a tree that no Writer could have made. Errors: ErrTree.
func (t *Tree) check() error {
	dirs := make(map[string]bool)
	for i := range t.Entries {
		e := &t.Entries[i]
		if err := checkPath(e.Path); err != nil {
			return fmt.Errorf("%w: %w", ErrTree, err)
		}
		if i > 0 && t.Entries[i-1].Path >= e.Path {
			return fmt.Errorf("%w: %q is out of order", ErrTree, e.Path)
		}
		if p := parent(e.Path); p != "" && !dirs[p] {
			return fmt.Errorf("%w: %q has no parent directory", ErrTree, e.Path)
		}
		if e.Mode&^0o777 != 0 {
			return fmt.Errorf("%w: %q has mode %#o", ErrTree, e.Path, e.Mode)
		}
		if e.UID > MaxID || e.GID > MaxID {
			return fmt.Errorf("%w: %q has owner %d:%d", ErrTree, e.Path, e.UID, e.GID)
		}
		ok := false
		switch e.Kind {
		case KindFile:
			ok = e.Digest.check() == nil && e.Link == "" && e.Size >= 0 && (e.Size == 0) == (e.Digest == emptyDigest)
		case KindDir:
			ok = e.Digest == "" && e.Link == "" && e.Size == 0 && (!e.Opaque || !e.Implied)
			dirs[e.Path] = true
		case KindSymlink:
			ok = e.Digest == "" && e.Mode == 0 && e.Size == 0 && checkTarget(e.Path, e.Link) == nil
		case KindWhiteout:
			ok = *e == Entry{Path: e.Path, Kind: KindWhiteout}
		}
		if !ok || e.Kind != KindDir && (e.Opaque || e.Implied) || e.Kind != KindFile && e.Aside {
			return fmt.Errorf("%w: %q is no sound %q entry", ErrTree, e.Path, e.Kind)
		}
	}
	return nil
}

// encode returns the canonical bytes of t: one line of JSON, members in the
// order of the struct, entries sorted by path.
func (t *Tree) encode() ([]byte, error) {
	slices.SortFunc(t.Entries, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	if err := t.check(); err != nil {
		return nil, err
	}
	asText := *t
	for i := range t.Entries {
		e := t.Entries[i]
		if utf8.ValidString(e.Path) && utf8.ValidString(e.Link) {
			continue
		}
		if &asText.Entries[0] == &t.Entries[0] {
			asText.Entries = slices.Clone(t.Entries)
		}
		e.Path, e.RawPath = raw(e.Path)
		e.Link, e.RawLink = raw(e.Link)
		asText.Entries[i] = e
	}
	return json.Marshal(&asText)
}

// raw returns name as JSON holds it: as text, or in base64 if name is not UTF-8.
func raw(name string) (text, encoded string) {
	if utf8.ValidString(name) {
		return name, ""
	}
	return "", base64.StdEncoding.EncodeToString([]byte(name))
}

// unraw is the inverse of raw.
func unraw(text, encoded string) (string, error) {
	if encoded == "" {
		return text, nil
	}
	name, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || text != "" || utf8.Valid(name) {
		return "", fmt.Errorf("%w: %q is not a non-UTF-8 name in base64", ErrTree, encoded)
	}
	return string(name), nil
}

// decodeTree is the inverse of encode.
func decodeTree(b []byte) (*Tree, error) {
	t := new(Tree)
	if err := decodeStrict(b, t); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTree, err)
	}
	for i := range t.Entries {
		e := &t.Entries[i]
		path, err := unraw(e.Path, e.RawPath)
		if err == nil {
			e.Path, e.RawPath = path, ""
			path, err = unraw(e.Link, e.RawLink)
		}
		if err != nil {
			return nil, err
		}
		e.Link, e.RawLink = path, ""
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	return t, nil
}

// decodeStrict decodes exactly one JSON value. Unknown members and further data are errors.
func decodeStrict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("data after the JSON value")
	}
	return nil
}
