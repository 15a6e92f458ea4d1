package inbox

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// event is one event of inotify(7).
type event struct {
	watch int
	mask  uint32
	name  string
}

// parseEvents decodes a buffer read from inotify(7). An event is watch, mask, cookie and length of
// the name, four bytes each, and the name, padded with zeros.
func parseEvents(b []byte) []event {
	var all []event
	for len(b) >= unix.SizeofInotifyEvent {
		n := int(binary.NativeEndian.Uint32(b[12:]))
		if n < 0 || n > len(b)-unix.SizeofInotifyEvent {
			break
		}
		name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+n], []byte{0})
		all = append(all, event{int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:]), string(name)}) //nolint:gosec // the watch is -1 after an overflow
		b = b[unix.SizeofInotifyEvent+n:]
	}
	return all
}
