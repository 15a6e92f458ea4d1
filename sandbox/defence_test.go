package sandbox

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox/seccomp"
)

// TestFilter: The system call filter refuses the calls outside of its list. The same calls without
// the filter show the filter's effect.
func TestFilter(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	want := `unix socket: <nil>
tcp socket: <nil>
udp socket: <nil>
netlink route: <nil>
netlink audit: EAFNOSUPPORT
vsock: EAFNOSUPPORT
packet: EAFNOSUPPORT
alg: EAFNOSUPPORT
sctp: EPROTONOSUPPORT
clone3: ENOSYS
unshare nothing: EPERM
no such call: ENOSYS
io_uring: EPERM
bpf: EPERM
userfaultfd: EPERM
perf: EPERM
ptrace: EPERM
keyctl: EPERM
file handle: EPERM
personality asked: <nil>
personality without randomness: EPERM
terminal input: EPERM
other terminal call: ENOTTY
`
	for _, policy := range seccomp.Policies() {
		spec := prog(root, "calls")
		spec.Policy = policy
		out, _ := run(t, h, spec)
		if diff := cmp.Diff(want, out); diff != "" {
			t.Errorf("policy %d: calls (-want +got):\n%s", policy, diff)
		}
	}
	spec := prog(root, "calls")
	spec.Without = DefenceSeccomp
	out, _ := run(t, h, spec)
	for _, line := range []string{
		"clone3: EINVAL\n", "unshare nothing: <nil>\n", "personality without randomness: <nil>\n", "terminal input: ENOTTY\n",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("without the filter there is no %q:\n%s", line, out)
		}
	}
}

// machine writes a program of x86-64 machine code.
func machine(t *testing.T, name, code string) {
	t.Helper()
	const base, headers = 0x400000, 64 + 56
	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	size := uint64(headers + len(code))
	for _, v := range []any{
		uint16(2), uint16(62), uint32(1), uint64(base + headers), uint64(64), uint64(0), // an executable for x86-64, and its entry
		uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0), // one segment
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(4096), // loaded, readable and executable
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	b.WriteString(code)
	if err := os.WriteFile(name, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestOtherABIs: A system call through another ABI of the processor, with a number of another
// meaning, ends the process.
func TestOtherABIs(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	for _, test := range []struct{ name, code string }{
		{"i386", "\xb8\x01\x00\x00\x00" + "\xbb\x2a\x00\x00\x00" + "\xcd\x80"},                                      // mov eax, exit; mov ebx, 42; int 0x80
		{"x32", "\xb8\x27\x00\x00\x40" + "\x0f\x05" + "\xb8\x3c\x00\x00\x00" + "\xbf\x2a\x00\x00\x00" + "\x0f\x05"}, // x32's getpid; exit(42)
	} {
		t.Run(test.name, func(t *testing.T) {
			machine(t, filepath.Join(root, "bin", test.name), test.code)
			spec := prog(root)
			spec.Args = []string{"/bin/" + test.name}
			if _, status := run(t, h, spec); status.Signal != int(unix.SIGSYS) {
				t.Errorf("ended with %+v, want SIGSYS", status)
			}
			spec.Without = DefenceSeccomp
			// A kernel without the i386 interface kills the process.
			if _, status := run(t, h, spec); status.Code != 42 && status.Signal != int(unix.SIGSEGV) {
				t.Errorf("without the filter: ended with %+v, want code 42", status)
			}
		})
	}
}

// TestLandlock: Landlock keeps a build step on the host's network from the host's abstract sockets,
// which belong to a network namespace.
func TestLandlock(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	name := fmt.Sprintf("@fre-test-%d", os.Getpid())
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spec := prog(root, "dial", name)
	spec.Network = NetworkHost
	// An older kernel refuses no connection, and Defences does not list Landlock.
	kept := slices.Contains(h.Defences(), "landlock")
	if out, status := run(t, h, spec); strings.Contains(out, "operation not permitted") != kept {
		t.Errorf("connect: %q, %+v; want it refused: %v", out, status, kept)
	}
	if kept != (h.spawners.landlock.Load() >= landlockScopes) {
		t.Errorf("defences %q with Landlock's ABI %d", h.Defences(), h.spawners.landlock.Load())
	}
	spec.Without = DefenceLandlock
	if out, status := run(t, h, spec); status.Code != 0 {
		t.Errorf("connect without Landlock: %q, %+v", out, status)
	}
}

// TestWithout: Each defence prevents its access: without the defence the access succeeds.
func TestWithout(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	for name, id := range map[string]uint32{"open": 1000, "bin/suid": 0} { // owned by the tenant's user and by the tenant's root
		path := filepath.Join(root, name)
		if name == "open" {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		} else {
			b, err := os.ReadFile(filepath.Join(root, "bin/prog"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(path, int(tenant.HostBase+id), int(tenant.HostBase+id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "bin/suid"), 0o755|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	suid := prog(root, "ids")
	suid.Args[0] = "/bin/suid"
	for _, test := range []struct {
		name     string
		without  Defence
		spec     Spec
		with, wo string // parts of the output with the defence and without
	}{
		{
			"capabilities", DefenceCapabilities, prog(root, "cat", "/proc/self/status"),
			"CapEff:\t0000000000000000", "CapEff:\t000001ffffffffff",
		},
		{"no new privileges", DefenceNoNewPrivs, prog(root, "cat", "/proc/self/status"), "NoNewPrivs:\t1", "NoNewPrivs:\t0"},
		{"filter", DefenceSeccomp, prog(root, "cat", "/proc/self/status"), "Seccomp:\t2", "Seccomp:\t0"},
		{"set-uid bits", DefenceNoSuid | DefenceNoNewPrivs, suid, "1000 1000", "1000 0"},
		{"set-uid bits, mounts alone", DefenceNoSuid, suid, "1000 1000", "1000 1000"},
		{"read-only root", DefenceReadOnlyRoot, prog(root, "write", "/open/x", ""), "read-only", ""},
		{"processes alone", DefenceProcSubset, prog(root, "cat", "/proc/meminfo"), "no such file", "MemTotal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if out, _ := run(t, h, test.spec); !strings.Contains(out, test.with) {
				t.Errorf("with it: %q, want a part %q", out, test.with)
			}
			test.spec.Without = test.without
			if out, _ := run(t, h, test.spec); !strings.Contains(out, test.wo) || test.wo == "" && out != "" {
				t.Errorf("without it: %q, want a part %q", out, test.wo)
			}
		})
	}
	t.Run("key ring", func(t *testing.T) {
		spec := prog(root, "sessionkeys")
		for without, same := range map[Defence]bool{DefenceSeccomp: false, DefenceSeccomp | DefenceKeyring: true} {
			spec.Without = without
			first, _ := run(t, h, spec)
			second, _ := run(t, h, spec)
			if (first == second) != same {
				t.Errorf("without %b: session key rings %q and %q, want the same: %v", without, first, second, same)
			}
		}
	})
}

// TestWithoutIsForTests: No program of FRE can switch a defence off.
func TestWithoutIsForTests(t *testing.T) {
	if os.Getenv("FRE_V2") != "" {
		t.Skip("the sources are not in the guest")
	}
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || path == "../sandbox") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && (id.Name == "Without" || strings.HasPrefix(id.Name, "Defence") && id.Name != "Defences") {
				t.Errorf("%s uses %s", path, id.Name)
			}
			return true
		})
		return nil
	})
	if err != nil || files < 50 {
		t.Errorf("%d files read: %v", files, err)
	}
}

// TestUnknownSystemCallPolicy: An unknown policy of system calls is refused.
func TestUnknownSystemCallPolicy(t *testing.T) {
	spec := prog("/", "exit")
	spec.Policy = 9
	spec.setDefaults()
	if err := spec.check(); err == nil {
		t.Error("accepted")
	}
}
