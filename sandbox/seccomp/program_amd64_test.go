package seccomp

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	profiles "github.com/moby/profiles/seccomp"
	"golang.org/x/sys/unix"
)

// call is struct seccomp_data without the instruction pointer.
type call struct {
	nr   uint32
	arch uint32
	args [6]uint64
}

func (c call) load(offset uint32) uint32 {
	switch {
	case offset == offsetNumber:
		return c.nr
	case offset == offsetArch:
		return c.arch
	case offset >= offsetArgs && offset < offsetArgs+8*6 && offset%4 == 0:
		arg := c.args[(offset-offsetArgs)/8]
		if offset%8 == 4 {
			arg >>= 32
		}
		return uint32(arg)
	}
	panic(fmt.Sprint("load from ", offset))
}

// simulate runs the program as the kernel does, with only the classic instructions that the kernel
// permits in a filter.
func simulate(program []unix.SockFilter, c call) (result verdict, steps int) {
	var a uint32
	for pc := 0; ; pc++ {
		steps++
		in := program[pc]
		skip := func(hit bool) int {
			if hit {
				return int(in.Jt)
			}
			return int(in.Jf)
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = c.load(in.K)
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			pc += skip(a == in.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			pc += skip(a >= in.K)
		case unix.BPF_RET | unix.BPF_K:
			return verdict(in.K), steps
		default:
			panic(fmt.Sprintf("instruction %d is %#x", pc, in.Code))
		}
	}
}

// expect reads the table as a person would.
func expect(p Policy, c call) verdict {
	if c.arch != arch || c.nr >= x32 {
		return kill
	}
	if slices.Contains(allowed, c.nr) {
		return allow
	}
	if p == ForkServer {
		switch c.nr {
		case unix.SYS_UNSHARE:
			if slices.Contains([]uint64{0x20000000, 0x0c020000, 0x4c020000, 0x02000000}, c.args[0]) {
				return allow
			}
		case unix.SYS_SETNS:
			if slices.Contains([]uint32{0x20000000, 0x40000000}, uint32(c.args[1])) {
				return allow
			}
		}
	}
	if slices.Contains(refused, c.nr) {
		return fail(unix.EPERM)
	}
	arg := func(i int) uint32 { return uint32(c.args[i]) }
	either := func(ok bool, errno unix.Errno) verdict {
		if ok {
			return allow
		}
		return fail(errno)
	}
	switch c.nr {
	case unix.SYS_FCNTL:
		return either(arg(1) != unix.F_OFD_SETLK && arg(1) != unix.F_OFD_SETLKW, unix.EINVAL)
	case unix.SYS_CLONE:
		return either(arg(0)&0x7e020000 == 0, unix.EPERM)
	case unix.SYS_PERSONALITY:
		return either(slices.Contains([]uint32{0, 8, 0x20000, 0x20008, 0xffffffff}, arg(0)), unix.EPERM)
	case unix.SYS_IOCTL:
		return either(!slices.Contains([]uint32{0x5412, 0x541c, 0x5423}, arg(1)), unix.EPERM)
	case unix.SYS_SOCKET, unix.SYS_SOCKETPAIR:
		switch arg(0) {
		case 1:
			return allow
		case 2, 10:
			return either(slices.Contains([]uint32{0, 1, 6, 17, 58, 262}, arg(2)), unix.EPROTONOSUPPORT)
		case 16:
			return either(arg(2) == 0, unix.EAFNOSUPPORT)
		}
		return fail(unix.EAFNOSUPPORT)
	}
	return fail(unix.ENOSYS)
}

func compiled(t testing.TB, p Policy) []unix.SockFilter {
	t.Helper()
	program, err := p.Program()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// TestProgram: The program gives the table's verdict for each call number, architecture and notable
// argument.
func TestProgram(t *testing.T) {
	const i386, aarch64 = unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64
	values := []uint64{
		0, 1, 2, 3, 8, 9, 10, 11, 15, 16, 17, 18, 37, 38, 40, 44, 58, 132, 255, 262, // families and protocols
		0x8, 0x20000, 0x20008, 0x40000, 0x60000, 0xffffffff, // personalities
		0x5411, 0x5412, 0x5413, 0x541c, 0x541d, 0x5423, 0x5424, // ioctls
		0x11, 0x3d0f00, 0x4111, 0x01200011, // clones without namespaces
		0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x80000000, // each flag
		0x0c020000, 0x4c020000, 0x1c020000, 0x5c020000, 0x22000000, 1<<32 | 0x0c020000, // those of the fork server, and near misses
		1 << 32, 1<<32 | 1, 1<<32 | 16, 1<<32 | 0x10000000, ^uint64(0), // above the bits that the kernel reads
	}
	for _, p := range Policies() {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			program := compiled(t, p)
			seen := map[verdict]int{}
			check := func(c call) {
				t.Helper()
				got, _ := simulate(program, c)
				if want := expect(p, c); got != want {
					t.Fatalf("call %d of %#x with %#x: got %#x, want %#x", c.nr, c.arch, c.args, got, want)
				}
				seen[got]++
			}
			numbers := []uint32{1 << 20, x32 - 1, 1<<31 - 1, 1 << 31, 1<<32 - 1}
			for nr := range uint32(1024) {
				numbers = append(numbers, nr, nr|x32)
			}
			for _, nr := range numbers {
				for _, a := range []uint32{arch, i386, aarch64, 0} {
					check(call{nr: nr, arch: a})
				}
				for _, first := range values {
					check(call{nr: nr, arch: arch, args: [6]uint64{first}})
					for i := 1; i < 6; i++ {
						for _, value := range values {
							args := [6]uint64{first}
							args[i] = value
							check(call{nr: nr, arch: arch, args: args})
						}
					}
					if checked[nr].otherwise == 0 && forking[nr].otherwise == 0 {
						break
					}
				}
			}
			for _, v := range []verdict{
				allow, kill, fail(unix.EPERM), fail(unix.ENOSYS), fail(unix.EAFNOSUPPORT), fail(unix.EPROTONOSUPPORT),
			} {
				if seen[v] == 0 {
					t.Errorf("no call got %#x", v)
				}
			}
		})
	}
}

// FuzzProgram: The compiled program agrees with the table for any system call, architecture and
// arguments.
func FuzzProgram(f *testing.F) {
	f.Add(uint32(unix.SYS_UNSHARE), uint32(arch), uint64(forkMost), uint64(0), uint64(0))
	f.Add(uint32(unix.SYS_SOCKET), uint32(arch), uint64(unix.AF_NETLINK), uint64(0), uint64(1))
	f.Add(uint32(unix.SYS_READ|x32), uint32(arch), uint64(0), uint64(0), uint64(0))
	var programs [][]unix.SockFilter
	for _, p := range Policies() {
		programs = append(programs, compiled(f, p))
	}
	f.Fuzz(func(t *testing.T, nr, machine uint32, first, second, third uint64) {
		c := call{nr: nr, arch: machine, args: [6]uint64{first, second, third}}
		for i, p := range Policies() {
			if got, _ := simulate(programs[i], c); got != expect(p, c) {
				t.Errorf("policy %d, %+v: got %#x, want %#x", p, c, got, expect(p, c))
			}
		}
	})
}

// TestDepth: The kernel runs the program once per call number at each load, so a start pays for the
// depth of the program.
func TestDepth(t *testing.T) {
	for _, p := range Policies() {
		program := compiled(t, p)
		deepest := 0
		for nr := range uint32(1024) {
			if checked[nr].otherwise != 0 || forking[nr].otherwise != 0 {
				continue
			}
			_, steps := simulate(program, call{nr: nr, arch: arch})
			deepest = max(deepest, steps)
		}
		t.Logf("policy %d: %d instructions, at most %d run", p, len(program), deepest)
		if deepest > 12 || len(program) > 200 {
			t.Errorf("policy %d has %d instructions and runs up to %d", p, len(program), deepest)
		}
	}
}

// TestTable: No call stands in two lists.
func TestTable(t *testing.T) {
	lists := map[uint32]int{}
	for _, list := range [][]uint32{allowed, refused} {
		for _, nr := range list {
			lists[nr]++
		}
	}
	for nr := range checked {
		lists[nr]++
	}
	for nr, n := range lists {
		if n != 1 {
			t.Errorf("call %d stands in %d lists", nr, n)
		}
	}
}

// TestUnknownPolicy: An unknown policy is refused.
func TestUnknownPolicy(t *testing.T) {
	if _, err := Policy(9).Program(); err == nil {
		t.Error("compiled")
	}
}

//go:embed table_amd64.go
var table []byte

// names returns the calls of a list in the table's source, by their kernel names.
func names(t *testing.T, list string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "table_amd64.go", table, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].Name == list {
			for _, element := range v.Values[0].(*ast.CompositeLit).Elts {
				if pair, ok := element.(*ast.KeyValueExpr); ok {
					element = pair.Key
				}
				all = append(all, strings.ToLower(strings.TrimPrefix(element.(*ast.SelectorExpr).Sel.Name, "SYS_")))
			}
		}
		return true
	})
	slices.Sort(all)
	return all
}

// The policy is nowhere laxer than Docker's default profile. The stricter calls are listed below.
func TestProfile(t *testing.T) {
	// The calls that Docker's default profile allows on x86-64 to a container without capabilities,
	// for all arguments.
	var theirs []string
	for _, s := range profiles.DefaultProfile().Syscalls {
		if in := s.Includes; in != nil && (len(in.Caps) > 0 || len(in.Arches) > 0 && !slices.Contains(in.Arches, "amd64")) {
			continue
		}
		if s.Action == "SCMP_ACT_ALLOW" {
			theirs = append(theirs, s.Names...)
		}
	}
	slices.Sort(theirs)
	theirs = slices.Compact(theirs)
	if len(theirs) < 300 {
		t.Fatalf("their profile has %d calls", len(theirs))
	}
	var stricter, laxer []string
	ours := append(names(t, "allowed"), names(t, "checked")...)
	known := append(slices.Clone(ours), names(t, "refused")...)
	for _, name := range ours {
		// Here clone3 is a check that ends with ENOSYS, as in Docker's profile.
		if !slices.Contains(theirs, name) && name != "clone3" {
			laxer = append(laxer, name)
		}
	}
	for _, name := range theirs {
		if !slices.Contains(ours, name) && slices.Contains(known, name) {
			stricter = append(stricter, name)
		}
	}
	want := []string{"fanotify_mark", "modify_ldt", "name_to_handle_at", "process_vm_readv", "process_vm_writev", "ptrace"}
	if diff := cmp.Diff(want, stricter); diff != "" {
		t.Errorf("stricter (-want +got):\n%s", diff)
	}
	if len(laxer) > 0 {
		t.Errorf("allowed here and not there: %v", laxer)
	}
}
