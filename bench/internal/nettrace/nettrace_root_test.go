package nettrace

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// open opens a Tracer until t ends and requires all parts of the trace.
func open(t *testing.T, cfg Config) *Tracer {
	t.Helper()
	tracer, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tracer.Close(); err != nil {
			t.Error(err)
		}
	})
	if missing := tracer.Missing(); len(missing) > 0 {
		t.Fatalf("missing: %q", missing)
	}
	return tracer
}

// requireTypes skips the test on a kernel without BTF, such as the kernel of test/v2.
func requireTypes(t *testing.T) {
	t.Helper()
	fretest.RequireRoot(t)
	if _, err := btf.LoadKernelSpec(); err != nil {
		t.Skipf("this kernel does not tell its types: %v", err)
	}
}

// onThread runs f on a thread that ends with f, and with the thread all that f made. The first
// thread of a process cannot end, and represents the process below /proc.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			onThread(f) // on another thread, because the first thread must stay
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// inNamespace runs f on a thread with its own network, whose loopback drops every nth large packet
// on the way in. dropped returns the number of drops.
func inNamespace(t *testing.T, nth int32, f func(namespace uint32, dropped func() uint64)) {
	t.Helper()
	onThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Error(err)
			return
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Error(err)
			return
		}
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), &st); err != nil {
			t.Error(err)
			return
		}
		counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
		if err != nil {
			t.Error(err)
			return
		}
		defer counts.Close()
		const pass, drop = 0, 2 // TCX_PASS, TCX_DROP
		count := func(slot int64, to string) asm.Instructions {
			return asm.Instructions{
				asm.StoreImm(asm.RFP, -8, slot, asm.Word),
				asm.LoadMapPtr(asm.R1, counts.FD()),
				asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
				asm.FnMapLookupElem.Call(),
				asm.JEq.Imm(asm.R0, 0, to),
				asm.LoadMem(asm.R6, asm.R0, 0, asm.DWord),
				asm.Add.Imm(asm.R6, 1),
				asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord),
			}
		}
		program := asm.Instructions{
			asm.LoadMem(asm.R7, asm.R1, 0, asm.Word), // __sk_buff.len
			asm.JLT.Imm(asm.R7, 1000, "pass"),
		}
		program = append(program, count(0, "pass")...)
		program = append(program, asm.Mod.Imm(asm.R6, nth), asm.JNE.Imm(asm.R6, 0, "pass"))
		program = append(program, count(1, "pass")...)
		program = append(program,
			asm.Mov.Imm(asm.R0, drop), asm.Return(),
			asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"), asm.Return(),
		)
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: program, License: "Apache-2.0"})
		if err != nil {
			t.Error(err)
			return
		}
		defer prog.Close()
		l, err := link.AttachTCX(link.TCXOptions{Interface: lo.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		f(uint32(st.Ino), func() (n uint64) {
			if err := counts.Lookup(uint32(1), &n); err != nil {
				t.Error(err)
			}
			return n
		})
	})
}

// transfer sends size bytes from a client to a server. It returns the client's address and the
// kernel's number of retransmitted segments. It calls arrived, unless nil, before it asks the
// kernel.
func transfer(t *testing.T, listen string, size int64, arrived func()) (net.Addr, uint32) {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Error(err)
		return nil, 0
	}
	defer l.Close()
	received := make(chan int64)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		received <- n
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Error(err)
		_ = l.Close()
		<-received
		return nil, 0
	}
	defer c.Close()
	if _, err := io.CopyN(c, zeros{}, size); err != nil {
		t.Error(err)
	}
	// All bytes have arrived and are acknowledged once the server has seen the end.
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Error(err)
	}
	if n := <-received; n != size {
		t.Errorf("%d bytes of %d arrived", n, size)
	}
	if arrived != nil {
		arrived()
	}
	var info *unix.TCPInfo
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Error(err)
		return nil, 0
	}
	if cerr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) }); cerr != nil || err != nil {
		t.Error(cerr, err)
		return nil, 0
	}
	return c.LocalAddr(), info.Total_retrans
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Each packet dropped on purpose appears as a drop with its reason, and the number of
// retransmissions equals the kernel's own count.
func TestRetransmissions(t *testing.T) {
	requireTypes(t)
	fretest.CheckLeaks(t)
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			// This process is outside the namespace.
			owners := []Owner{{ID: "box", Name: "hello", PIDs: []int{os.Getpid()}}}
			tracer := open(t, Config{Owners: func() ([]Owner, error) { return owners, nil }})
			inNamespace(t, 20, func(namespace uint32, dropped func() uint64) {
				before, err := tracer.Sample()
				if err != nil {
					t.Error(err)
					return
				}
				// A retransmission may still happen. The sample must include all losses counted
				// before, and the kernel's count must include the sample's retransmissions.
				var s *Sample
				onPurpose := uint64(0)
				local, again := transfer(t, listen, 32<<20, func() {
					onPurpose = dropped()
					s, err = tracer.Sample()
				})
				if err != nil || local == nil {
					t.Error(err)
					return
				}
				s = s.Since(before)
				lost, counted := uint64(0), uint64(0)
				for _, d := range s.Drops {
					if d.Reason == "TC_INGRESS" {
						lost += d.Count
					}
				}
				for _, r := range s.Retransmissions {
					if r.Namespace == namespace && r.Local.String() == local.String() {
						counted += r.Count
						if r.Sandbox != "" {
							t.Errorf("%+v is said to be a sandbox's", r)
						}
					}
				}
				if onPurpose == 0 || lost < onPurpose {
					t.Errorf("%d packets lost on purpose, %d drops seen: %+v", onPurpose, lost, s.Drops)
				}
				// A packet of several segments is retransmitted as a whole.
				if counted == 0 || counted > uint64(again) {
					t.Errorf("%d retransmissions seen, the kernel has %d: %+v", counted, again, s.Retransmissions)
				}
				t.Logf("%d lost, %d sent again in %d segments", onPurpose, counted, again)
			})
		})
	}
}

// Retransmissions in a sandbox's network name the sandbox.
func TestOwner(t *testing.T) {
	requireTypes(t)
	fretest.CheckLeaks(t)
	var owners []Owner
	tracer := open(t, Config{Owners: func() ([]Owner, error) { return owners, nil }})
	inNamespace(t, 10, func(namespace uint32, _ func() uint64) {
		// A thread has a directory below /proc by its id, as a process has.
		owners = []Owner{{ID: "box", Name: "hello", PIDs: []int{unix.Gettid()}}}
		transfer(t, "127.0.0.1:0", 8<<20, nil)
		s, err := tracer.Sample()
		if err != nil {
			t.Error(err)
			return
		}
		found := false
		for _, r := range s.Retransmissions {
			if r.Namespace == namespace {
				found = true
				if r.Sandbox != "box" || r.Function != "hello" {
					t.Errorf("%+v is not said to be of box", r)
				}
			}
		}
		if !found {
			t.Error("no retransmission of the namespace")
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(NewMetrics(tracer))
		w := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, want := range []string{
			`fre_net_retransmissions_total{function="hello"} `, `fre_net_drops_total{reason="TC_INGRESS"} `,
			`fre_net_softirq_seconds_total{cpu="0"} `, `fre_net_run_queue_seconds_total{function="hello",sandbox="box"} `,
		} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("no %s in:\n%s", want, w.Body)
			}
		}
	})
}

func TestAllocations(t *testing.T) {
	requireTypes(t)
	fretest.CheckLeaks(t)
	tracer := open(t, Config{Allocations: true})
	transfer(t, "127.0.0.1:0", 1<<20, nil)
	s, err := tracer.Sample()
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for _, a := range s.Allocations {
		if !strings.HasPrefix(a.Cache, "skbuff_") || a.Bytes == 0 {
			t.Errorf("%+v is no packet buffer", a)
		}
		n += a.Count
	}
	if n == 0 {
		t.Errorf("no packet buffer was allocated for a megabyte: %+v", s)
	}
	// Allocations are counted only on request.
	if quiet := open(t, Config{}); quiet.maps[allocations] != nil {
		t.Error("allocations are counted without being asked for")
	}
}

// Without capabilities a tracer traces the rest and lists the missing parts.
func TestMissing(t *testing.T) {
	requireTypes(t)
	onThread(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
			return
		}
		tracer, err := Open(Config{Allocations: true})
		if err != nil {
			t.Error(err)
			return
		}
		missing := tracer.Missing()
		s, err := tracer.Sample()
		if err == nil && (len(missing) != 3 || !strings.Contains(missing[0], "retransmissions are not counted: it takes root, or CAP_BPF")) {
			err = fmt.Errorf("missing: %q", missing)
		}
		if err == nil && (len(s.SoftIRQ) == 0 || cmp.Diff(missing, s.Missing) != "") {
			err = fmt.Errorf("sample: %+v", s)
		}
		if err := errors.Join(err, tracer.Close()); err != nil {
			t.Error(err)
		}
	})
}
