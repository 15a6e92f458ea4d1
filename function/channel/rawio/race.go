//go:build race

package rawio

import (
	"runtime"
	"syscall"
	"unsafe"
)

// ioSync stands for all sockets: a send happens before a receive, as in package syscall under
// the race detector.
var ioSync int

// received tells the race detector that the kernel has written p.
func received(p []byte) {
	runtime.RaceAcquire(unsafe.Pointer(&ioSync))
	if len(p) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}

// sending tells the race detector that the kernel reads p.
func sending(p []byte) {
	runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync))
	_, _ = syscall.Write(-1, nil) // fails, but synchronises with receivers that use package syscall
	if len(p) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}
