package inbox

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// event is one of inotify's.
type event struct {
	watch int
	mask  uint32
	name  string
}

// parseEvents reads what inotify(7) gives: watch, mask, cookie and length of the name, four
// bytes each, then the name with zeros after it.
func parseEvents(b []byte) []event {
	var all []event
	for len(b) >= unix.SizeofInotifyEvent {
		n := int(binary.NativeEndian.Uint32(b[12:]))
		if n < 0 || n > len(b)-unix.SizeofInotifyEvent {
			break
		}
		name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+n], []byte{0})
		all = append(all, event{int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:]), string(name)}) //nolint:gosec // -1 with an overflow
		b = b[unix.SizeofInotifyEvent+n:]
	}
	return all
}
