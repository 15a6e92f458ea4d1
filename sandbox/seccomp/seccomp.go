// Package seccomp says which system calls a sandbox may make, and compiles that
// into programs for the kernel's filter (seccomp(2)).
//
// A [Policy] is an allowlist. Its program looks at the architecture, then at
// the call's number, then, for a few calls, at arguments:
//
//	another architecture, x32     the process is killed
//	allowed                       is done
//	refused, or by its arguments  EPERM; EAFNOSUPPORT and its kin for sockets
//	unknown                       ENOSYS
//
// The numbers are searched by halves: at each load the kernel runs the program
// once for every call there is, and a list of 300 comparisons takes 20 times as
// long to load as such a tree.
package seccomp

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Policy is one of the sets of rules below.
type Policy int

const (
	Default    Policy = iota // functions and build steps
	ForkServer               // and clone with the namespaces of a new sandbox, all of them at once
)

// Policies lists all there are, in their order.
func Policies() []Policy { return []Policy{Default, ForkServer} }

// verdict is what the program returns (seccomp(2), SECCOMP_RET_…).
type verdict uint32

const (
	allow verdict = unix.SECCOMP_RET_ALLOW
	kill  verdict = unix.SECCOMP_RET_KILL_PROCESS
)

func fail(errno unix.Errno) verdict { return verdict(unix.SECCOMP_RET_ERRNO | uint32(errno)) }

// rule decides one call: the first clause that holds, else otherwise.
type rule struct {
	cases     []clause
	otherwise verdict
}

// clause holds if all its tests do.
type clause struct {
	when []test
	then verdict
}

// test asks whether an argument's lower half is one of values, after mask if
// there is one. The calls tested take no more than those 32 bits: int and
// unsigned int, and clone(2), which cuts its flags.
type test struct {
	arg    int
	mask   uint32
	values []uint32
}

// Offsets in struct seccomp_data, of which a program reads 32 bits at a time.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16 // 8 bytes each, the lower half first
)

// Program compiles p. It is the same at each call. errors.ErrUnsupported where
// there is no table for the machine's architecture.
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
		jump(unix.BPF_JGE, x32, 0, 1),
		give(kill),
	}
	program = append(program, tree(intervals(rules))...)
	if len(program) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("system call filter of %d instructions: %w", len(program), unix.E2BIG)
	}
	return program, nil
}

// interval is a run of numbers, up to the next one's first, with the same code.
type interval struct {
	first uint32
	code  []unix.SockFilter
}

func intervals(rules map[uint32]rule) []interval {
	var last uint32
	for nr := range rules {
		last = max(last, nr)
	}
	var all []interval
	for nr := range last + 2 { // one more: all that lies beyond
		r, ok := rules[nr]
		if !ok {
			r = rule{otherwise: fail(unix.ENOSYS)}
		}
		code := r.compile()
		if len(all) == 0 || !slices.Equal(all[len(all)-1].code, code) {
			all = append(all, interval{nr, code})
		}
	}
	return all
}

// tree finds the interval of the loaded number by halves.
func tree(all []interval) []unix.SockFilter {
	if len(all) == 1 {
		return all[0].code
	}
	middle := len(all) / 2
	low, high := tree(all[:middle]), tree(all[middle:])
	var code []unix.SockFilter
	if len(low) <= farthest {
		code = append(code, jump(unix.BPF_JGE, all[middle].first, len(low), 0))
	} else {
		code = append(code, jump(unix.BPF_JGE, all[middle].first, 0, 1),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(low))})
	}
	return append(append(code, low...), high...)
}

// compile ends with a verdict on every path. It is written from its end, where
// each jump's distance is known.
func (r rule) compile() []unix.SockFilter {
	code := []unix.SockFilter{give(r.otherwise)}
	for _, c := range slices.Backward(r.cases) {
		body := []unix.SockFilter{give(c.then)}
		for _, t := range slices.Backward(c.when) {
			head := []unix.SockFilter{load(offsetArgs + 8*t.arg)}
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

// farthest is how many instructions a conditional jump can skip.
const farthest = 255

// jump compares the loaded value with k and skips hit or miss instructions.
func jump(op uint16, k uint32, hit, miss int) unix.SockFilter {
	if hit > farthest || miss > farthest {
		panic("seccomp: a rule is too long for its jumps")
	}
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: uint8(hit), Jf: uint8(miss), K: k}
}
