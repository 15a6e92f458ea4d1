package linux

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// SharedUint64 returns the word at a byte offset of memory that other processes
// have mapped, too (MAP_SHARED), for atomic use by all of them. It is valid until
// the memory is unmapped. It panics when the word does not lie in mem, or not on a
// multiple of its size: offsets are the caller's own, never the other's.
func SharedUint64(mem []byte, offset int) *atomic.Uint64 {
	if offset < 0 || offset > len(mem)-8 || uintptr(unsafe.Pointer(&mem[offset]))%8 != 0 {
		panic(fmt.Sprintf("a word at %d of %d bytes", offset, len(mem)))
	}
	return (*atomic.Uint64)(unsafe.Pointer(&mem[offset]))
}
