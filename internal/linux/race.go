//go:build race

package linux

import (
	"runtime"
	"syscall"
	"unsafe"
)

// ioSync stands for all sockets: what is sent happens before what is received, as the
// race detector has it of package syscall.
var ioSync int

// received tells the race detector that the kernel has written p.
func received(p []byte) {
	runtime.RaceAcquire(unsafe.Pointer(&ioSync))
	if len(p) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}

// sending tells it that the kernel reads p.
func sending(p []byte) {
	runtime.RaceReleaseMerge(unsafe.Pointer(&ioSync))
	_, _ = syscall.Write(-1, nil) // fails, and tells those who receive by package syscall
	if len(p) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}
