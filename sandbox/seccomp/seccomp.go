// Package seccomp defines the system calls that a sandbox may make, and compiles the rules into
// programs for the kernel's filter (seccomp(2)).
//
// A [Policy] is an allowlist. The program checks the architecture, then the number of the call,
// then, for a few calls, the arguments:
//
//	another architecture, x32     the kernel kills the process
//	allowed                       the kernel makes the call
//	refused, or by its arguments  EPERM; EAFNOSUPPORT and its kin for sockets
//	unknown                       ENOSYS
//
// The program finds the number by binary search. At each load the kernel runs the program once
// for every existing call, and a list of 300 comparisons takes 20 times as long to load.
package seccomp

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"golang.org/x/sys/unix"
)

// Policy is a set of rules.
type Policy int

const (
	Default    Policy = iota // functions and build steps
	ForkServer               // Default, and the calls that make namespaces for the fork server's children
)

// Policies lists all policies, in their order.
func Policies() []Policy { return []Policy{Default, ForkServer} }

// verdict is the return value of the program (seccomp(2), SECCOMP_RET_…).
type verdict uint32

const (
	allow verdict = unix.SECCOMP_RET_ALLOW
	kill  verdict = unix.SECCOMP_RET_KILL_PROCESS
)

func fail(errno unix.Errno) verdict { return verdict(unix.SECCOMP_RET_ERRNO | uint32(errno)) }

// rule decides one call: the verdict of the first clause that holds, else otherwise.
type rule struct {
	cases     []clause
	otherwise verdict
}

// clause holds if all its tests hold.
type clause struct {
	when []test
	then verdict
}

// test checks whether half an argument, after mask unless 0, equals one of values. The lower
// half suffices for most calls tested: the kernel reads int or unsigned int, and clone(2)
// truncates its flags.
type test struct {
	arg    int
	high   bool // compare the upper half
	mask   uint32
	values []uint32
}

// Offsets in struct seccomp_data. A program reads 32 bits at a time.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16 // 8 bytes each, the lower half first
)

// Program compiles p; the result is always the same. The error is errors.ErrUnsupported if the
// machine's architecture has no table.
func (p Policy) Program() ([]unix.SockFilter, error) {
	if !slices.Contains(Policies(), p) {
		return nil, fmt.Errorf("system call policy %d is unknown: %w", p, unix.EINVAL)
	}
	rules, err := p.rules()
	if err != nil {
		return nil, err
	}
	program := []unix.SockFilter{
		load(offsetArch),
		jump(unix.BPF_JEQ, arch, 1, 0),
		give(kill),
		load(offsetNumber),
	}
	// First the comparisons, then each block of code once: the kernel spends more time on
	// compiling an instruction than on skipping one.
	all, blocks := intervals(rules)
	begin := make([]int, len(blocks))
	end := len(program) + len(all) - 1
	for i, block := range blocks {
		begin[i] = end
		end += len(block)
	}
	program = append(program, tree(all, len(program), begin)...)
	return append(program, slices.Concat(blocks...)...), nil
}

// interval is a run of call numbers that share a block of code. The run ends before the next
// interval's first number.
type interval struct {
	first uint32
	block int
}

func intervals(rules map[uint32]rule) (all []interval, blocks [][]unix.SockFilter) {
	add := func(first uint32, r rule) {
		code := r.compile()
		block := slices.IndexFunc(blocks, func(b []unix.SockFilter) bool { return slices.Equal(b, code) })
		if block < 0 {
			block = len(blocks)
			blocks = append(blocks, code)
		}
		if len(all) == 0 || all[len(all)-1].block != block {
			all = append(all, interval{first, block})
		}
	}
	unknown := rule{otherwise: fail(unix.ENOSYS)}
	last := slices.Max(slices.Collect(maps.Keys(rules)))
	for nr := range last + 1 {
		r, ok := rules[nr]
		if !ok {
			r = unknown
		}
		add(nr, r)
	}
	add(last+1, unknown)
	add(x32, rule{otherwise: kill})
	return all, blocks
}

// tree returns the binary search for the interval of the loaded number. The comparison stands
// at the program counter at; the comparisons of the lower half follow, then those of the upper
// half. A half with a single interval needs no comparison: the jump leads to begin of its
// block.
func tree(all []interval, at int, begin []int) []unix.SockFilter {
	if len(all) == 1 {
		return nil
	}
	middle := len(all) / 2
	low, high := all[:middle], all[middle:]
	lowAt, highAt := at+1, at+middle
	if len(low) == 1 {
		lowAt = begin[low[0].block]
	}
	if len(high) == 1 {
		highAt = begin[high[0].block]
	}
	code := []unix.SockFilter{jump(unix.BPF_JGE, high[0].first, highAt-at-1, lowAt-at-1)}
	return append(append(code, tree(low, at+1, begin)...), tree(high, at+middle, begin)...)
}

// compile returns the code of a rule. Every path ends with a verdict. compile works from the
// end of the code, since there the distance of each jump is known.
func (r rule) compile() []unix.SockFilter {
	code := []unix.SockFilter{give(r.otherwise)}
	for _, c := range slices.Backward(r.cases) {
		body := []unix.SockFilter{give(c.then)}
		for _, t := range slices.Backward(c.when) {
			offset := offsetArgs + 8*t.arg
			if t.high {
				offset += 4
			}
			head := []unix.SockFilter{load(offset)}
			if t.mask != 0 {
				head = append(head, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: t.mask})
			}
			for i, value := range t.values {
				miss := 0
				if i == len(t.values)-1 {
					miss = len(body) // to the next clause
				}
				head = append(head, jump(unix.BPF_JEQ, value, len(t.values)-1-i, miss))
			}
			body = append(head, body...)
		}
		code = append(body, code...)
	}
	return code
}

func load(offset int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(offset)}
}

func give(v verdict) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(v)}
}

// jump compares the loaded value with k and skips hit or miss instructions. jump panics beyond
// 255 instructions, far more than the tables need.
func jump(op uint16, k uint32, hit, miss int) unix.SockFilter {
	if max(hit, miss) > math.MaxUint8 {
		panic("seccomp: the policy is too long for its jumps")
	}
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: uint8(hit), Jf: uint8(miss), K: k}
}
