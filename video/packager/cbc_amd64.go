package packager

import "golang.org/x/sys/cpu"

// The standard library encrypts by CBC at half of what the processor can do, and a block at a
// time where they do not follow each other: so there is this.

// expand makes the keys of all rounds. The processor is to have AES.
//
//go:noescape
func expand(schedule *[176]byte, key *[16]byte)

// chainBlocks encrypts n blocks, each stride bytes behind the one before, chained to each
// other and the first to iv.
//
//go:noescape
func chainBlocks(schedule *[176]byte, iv *[16]byte, dst, src *byte, n, stride int)

// hardware says that there is such a processor.
var hardware = cpu.X86.HasAES
