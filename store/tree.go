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
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Digest is "sha256:" and 64 lower-case hexadecimal digits.
type Digest string

// Kind is the type of an [Entry].
type Kind string

// The kinds of entries in a tree. Devices, sockets and fifos are refused.
const (
	KindFile    Kind = "file"
	KindDir     Kind = "dir"
	KindSymlink Kind = "symlink"

	// KindWhiteout occurs only in the tree of a layer: the image omits the path, even if earlier
	// parts hold it.
	KindWhiteout Kind = "whiteout"
)

// Entry is one path of a [Tree].
type Entry struct {
	Path   string `json:"path"` // relative, slash-separated, clean; never "." or containing ".."
	Kind   Kind   `json:"kind"`
	Mode   uint32 `json:"mode,omitempty"`   // permission bits 0o777; set-id and sticky bits are stripped on entry
	MTime  int64  `json:"mtime,omitempty"`  // seconds since 1970
	Size   int64  `json:"size,omitempty"`   // bytes, files only
	Digest Digest `json:"digest,omitempty"` // of the content, files only
	Link   string `json:"link,omitempty"`   // target, symlinks only
	UID    uint32 `json:"uid,omitempty"`    // owner inside a sandbox, at most MaxID; functions see all but root as nobody
	GID    uint32 `json:"gid,omitempty"`

	// RawPath and RawLink are set in manifests only. A name that is not UTF-8 cannot stand in
	// JSON as text, so they hold Path and Link in base64.
	RawPath string `json:"raw_path,omitempty"`
	RawLink string `json:"raw_link,omitempty"`

	// Aside marks a file that lives as long as the tree and is in no image's root.
	Aside bool `json:"aside,omitempty"`

	// Directories in the tree of a layer only.
	Opaque  bool `json:"opaque,omitempty"`  // the image omits all that earlier parts hold below this directory
	Implied bool `json:"implied,omitempty"` // the layer does not name this directory: an earlier directory stays
}

// MaxID is the highest user or group id of a file. Sandboxes map ids up to MaxID only.
const MaxID = 65535

// Tree lists entries sorted by Path. It lists the parent directories of every file.
type Tree struct {
	Entries []Entry `json:"entries"`
}

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
		if err := e.check(); err != nil {
			return err
		}
		if e.Kind == KindDir {
			dirs[e.Path] = true
		}
	}
	return nil
}

// check refuses an entry by the fields that its kind must or must not have. Errors: ErrTree.
func (e *Entry) check() error {
	switch {
	case e.Mode&^0o777 != 0:
		return fmt.Errorf("%w: %q has mode %#o", ErrTree, e.Path, e.Mode)
	case e.UID > MaxID || e.GID > MaxID:
		return fmt.Errorf("%w: %q has owner %d:%d", ErrTree, e.Path, e.UID, e.GID)
	}
	if may, sound := e.shape(); !sound || *e != may {
		return fmt.Errorf("%w: %q is no sound %q entry", ErrTree, e.Path, e.Kind)
	}
	return nil
}

// shape returns e with only the fields that its kind may have, and whether these are sound.
func (e *Entry) shape() (may Entry, sound bool) {
	may = Entry{Path: e.Path, Kind: e.Kind}
	if e.Kind != KindWhiteout {
		may.MTime, may.UID, may.GID = e.MTime, e.UID, e.GID
	}
	switch e.Kind {
	case KindFile:
		may.Mode, may.Size, may.Digest, may.Aside = e.Mode, e.Size, e.Digest, e.Aside
		sound = e.Digest.check() == nil && e.Size >= 0 && (e.Size == 0) == (e.Digest == emptyDigest)
	case KindDir:
		may.Mode, may.Opaque, may.Implied = e.Mode, e.Opaque, e.Implied
		sound = !e.Opaque || !e.Implied
	case KindSymlink:
		may.Link = e.Link
		sound = checkTarget(e.Path, e.Link) == nil
	case KindWhiteout:
		sound = true
	}
	return may, sound
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

// ErrFileType: a device, fifo or socket, which no image may hold.
var ErrFileType = errors.New("not a regular file, directory or symlink")

// key returns the name of the file's object. Hard links share metadata, so the key covers mode,
// owner and mtime as well as content: Python ignores bytecode if its source's mtime differs. The
// store keeps no extended attributes.
func (e *Entry) key() string {
	b := make([]byte, 0, 128)
	b = append(b, "fre object 1\n"...)
	b = append(b, e.Digest.hex()...)
	b = append(b, '\n')
	b = strconv.AppendUint(b, uint64(e.Mode), 8)
	for _, id := range []uint32{e.UID, e.GID} {
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	b = append(b, ' ')
	b = strconv.AppendInt(b, e.MTime, 10)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// hasObject reports whether the entry has an object. Empty files have none: each image has its
// own.
func (e *Entry) hasObject() bool { return e.Kind == KindFile && e.Size > 0 }

// SizeOf returns the bytes of the files. Files with the same object are names of one inode and
// count once. Files aside do not count.
func SizeOf(entries []Entry) (n int64) {
	type inode struct {
		digest   Digest
		mtime    int64
		mode     uint32
		uid, gid uint32
	}
	seen := make(map[inode]struct{}, len(entries))
	for i := range entries {
		e := &entries[i]
		key := inode{e.Digest, e.MTime, e.Mode, e.UID, e.GID}
		if _, again := seen[key]; again || !e.hasObject() || e.Aside {
			continue
		}
		seen[key] = struct{}{}
		n += e.Size
	}
	return n
}

// DecodeTree decodes the TreeBytes of another, maybe hostile, store. It checks the digest, every
// path and every entry. Errors: ErrTree.
func DecodeTree(d Digest, b []byte) (*Tree, error) {
	if sumDigest(b) != d {
		return nil, fmt.Errorf("tree %s: %w: the digest is %s", d, ErrTree, sumDigest(b))
	}
	t, err := decodeTree(b)
	if err == nil {
		var canonical []byte
		canonical, err = t.encode()
		if err == nil && (t.Entries == nil || !bytes.Equal(b, canonical)) {
			err = fmt.Errorf("%w: not in canonical encoding", ErrTree)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", d, err)
	}
	return t, nil
}

// Objects returns the files with content to transfer, sorted by path. It omits empty files and
// all but the first of the files that share an object.
func (t *Tree) Objects() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		seen := make(map[string]bool)
		for i := range t.Entries {
			e := &t.Entries[i]
			if !e.hasObject() || seen[e.key()] {
				continue
			}
			seen[e.key()] = true
			if !yield(e) {
				return
			}
		}
	}
}
