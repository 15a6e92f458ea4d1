package packager

import "golang.org/x/sys/cpu"

// The standard library's CBC reaches half of the processor's speed. For blocks with gaps between
// them it encrypts only a block per call. Hence this assembly.

// expand computes the keys of all rounds. The processor must have AES instructions.
//
//go:noescape
func expand(schedule *[176]byte, key *[16]byte)

// chainBlocks encrypts n blocks at a distance of stride bytes, each chained to the block before
// and the first to iv.
//
//go:noescape
func chainBlocks(schedule *[176]byte, iv *[16]byte, dst, src *byte, n, stride int)

// hardware reports whether the processor has AES instructions.
var hardware = cpu.X86.HasAES
