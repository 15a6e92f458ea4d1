package linux

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// SharedUint64 returns the word at a byte offset of mem, memory shared with other processes
// (MAP_SHARED), for atomic use by all of them. The word is valid until the caller unmaps mem.
// SharedUint64 panics if the word lies outside mem or is not aligned: the offset must be the
// caller's own, never a value from the other process.
func SharedUint64(mem []byte, offset int) *atomic.Uint64 {
	if offset < 0 || offset > len(mem)-8 || uintptr(unsafe.Pointer(&mem[offset]))%8 != 0 {
		panic(fmt.Sprintf("a word at %d of %d bytes", offset, len(mem)))
	}
	return (*atomic.Uint64)(unsafe.Pointer(&mem[offset]))
}
