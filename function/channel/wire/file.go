package wire

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// FileMeta is the second JSON of FD and FILE: where the body is.
type FileMeta struct {
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Name   string `json:"name,omitempty"` // for FILE
	Kept   int    `json:"kept,omitempty"` // for FD: the number under which the file is or becomes kept; 0 for none
}

// KeptFiles is how many sealed files of one function the engine keeps open, so that answers can
// name them by number: FRE_KEPT_FILES.
const KeptFiles = 8

// Check refuses ranges that no file can have, and names that are not one directory entry.
func (m *FileMeta) Check(k Kind) error {
	switch {
	case m.Offset < 0 || m.Length < 0 || m.Offset+m.Length < 0:
		return fmt.Errorf("%w: a file's %d bytes from %d on", ErrProtocol, m.Length, m.Offset)
	case m.Kept < 0 || m.Kept > KeptFiles, k == KindFile && m.Kept != 0:
		return fmt.Errorf("%w: kept as %d in frame kind 0x%02x", ErrProtocol, m.Kept, uint8(k))
	case k == KindFD && m.Name != "",
		k == KindFile && (m.Name == "" || len(m.Name) > unix.NAME_MAX || m.Name == "." || m.Name == ".." || strings.ContainsAny(m.Name, "/\x00")):
		return fmt.Errorf("%w: file name %q in frame kind 0x%02x", ErrProtocol, m.Name, uint8(k))
	}
	return nil
}

// AnswerSeals are the seals that make a memfd immutable (fcntl(2), F_ADD_SEALS).
// F_SEAL_FUTURE_WRITE is not enough: writable mappings survive it.
const AnswerSeals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
