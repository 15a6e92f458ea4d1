// Package nettrace counts events in the kernel's network stack: TCP retransmissions by connection,
// dropped packets by reason, and allocated packet buffers by size. The package also measures the
// time of CPUs in soft interrupts, and how long threads wait for a CPU.
//
// eBPF programs on tracepoints with BTF types (tp_btf) do the counting. The kernel's own types give
// the offsets of fields, so one program fits all kernels. The programs are written in Go
// (programs.go), which avoids a BPF compiler. The programs need CAP_BPF and CAP_PERFMON, which root
// has, and /sys/kernel/btf/vmlinux. Counts that a host cannot provide are left out and reported by
// Tracer.Missing. Kprobes and fentry are not used, because some kernels refuse them.
package nettrace

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Config selects the counts. The zero value selects every count with a negligible cost.
type Config struct {
	// Allocations counts allocations of packet buffers. The program then runs on every allocation
	// from any cache of the kernel.
	Allocations bool
	// Owners returns the sandboxes whose network namespaces and threads are reported separately.
	// Each Sample calls Owners. Nil: no sandboxes.
	Owners func() ([]Owner, error)
}

// Owner is a sandbox.
type Owner struct {
	ID   string
	Name string // the function's name
	PIDs []int  // in the caller's pid namespace; the first process is in the sandbox's network namespace
}

// Tracer counts from Open to Close. Only one goroutine at a time may use a Tracer.
type Tracer struct {
	cfg     Config
	maps    map[string]*ebpf.Map // by program
	links   []link.Link
	reasons map[uint32]string
	missing []string
	own     uint64 // inode of this process's network namespace

	interrupts []time.Duration          // by CPU, at Open
	waited     map[int]time.Duration    // by thread, at the last Sample
	delays     map[string]time.Duration // by owner
}

// Open starts counting. A count that cannot be provided is not an error; see Missing.
func Open(cfg Config) (*Tracer, error) {
	t := &Tracer{cfg: cfg, maps: map[string]*ebpf.Map{}, waited: map[int]time.Duration{}, delays: map[string]time.Duration{}}
	var err error
	if t.own, err = namespaceOf("self"); err != nil {
		return nil, err
	}
	if t.interrupts, err = softirqs(); err != nil {
		t.miss("soft interrupts", err)
	}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		t.miss("retransmissions, drops and allocations", err)
		return t, nil
	}
	t.reasons = dropReasons(kernel)
	for _, p := range programs {
		if p.name == allocations && !cfg.Allocations {
			continue
		}
		if err := t.attach(kernel, p); err != nil {
			t.miss(p.name, err)
		}
	}
	if _, err := t.Sample(); err != nil { // run-queue delays count from now on
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Tracer) attach(kernel *btf.Spec, p program) (err error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "fre_" + p.tracepoint[:min(11, len(p.tracepoint))], Type: p.table, KeySize: p.key, ValueSize: 8, MaxEntries: p.entries})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = m.Close() // the map is still empty
		}
	}()
	instructions, err := p.instructions(kernel, m)
	if err != nil {
		return err
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "fre_net", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: p.tracepoint, Instructions: instructions,
		License: license,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prog.Close()) }() // the link keeps the program loaded
	l, err := link.AttachTracing(link.TracingOptions{Program: prog, AttachType: ebpf.AttachTraceRawTp})
	if err != nil {
		return err
	}
	t.links = append(t.links, l)
	t.maps[p.name] = m
	return nil
}

func (t *Tracer) miss(what string, err error) {
	why := err.Error()
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused):
		why = fmt.Sprintf("the kernel refuses the program: %v", refused)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		why = "it takes root, or CAP_BPF and CAP_PERFMON, and a kernel that allows it: " + why
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, btf.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		why = "the kernel lacks it (CONFIG_DEBUG_INFO_BTF, /sys/kernel/btf/vmlinux): " + why
	}
	t.missing = append(t.missing, what+" are not counted: "+why)
}

// Missing returns the missing counts with the reasons, one sentence each.
func (t *Tracer) Missing() []string { return slices.Clone(t.missing) }

// Close stops counting.
func (t *Tracer) Close() error {
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	for _, m := range t.maps {
		errs = append(errs, m.Close())
	}
	t.links, t.maps = nil, nil
	return errors.Join(errs...)
}

// Sample holds the counts since Open. Lists are in descending order of the count.
type Sample struct {
	Time            time.Time       `json:"time"`
	Retransmissions []Retransmitted `json:"retransmissions"`
	Drops           []Dropped       `json:"drops"`
	Allocations     []Allocated     `json:"allocations,omitempty"`
	SoftIRQ         []Interrupted   `json:"softirq"`
	RunQueue        []Delayed       `json:"run_queue"`
	Missing         []string        `json:"missing,omitempty"`
}

// Retransmitted counts the segments that a connection's end sent again. The table keeps at most
// 16,384 connections, those with the latest retransmissions.
type Retransmitted struct {
	Local     netip.AddrPort `json:"local"`
	Remote    netip.AddrPort `json:"remote"`
	Namespace uint32         `json:"network_namespace"` // inode of the network namespace
	Sandbox   string         `json:"sandbox,omitempty"` // if the namespace belongs to an owner
	Function  string         `json:"function,omitempty"`
	Count     uint64         `json:"count"`
}

// Dropped counts the packets that the kernel of the whole host dropped for a reason. Reason is the
// kernel's name (include/net/dropreason-core.h).
type Dropped struct {
	Reason string `json:"reason"`
	Count  uint64 `json:"count"`
}

// Allocated counts the packet buffers allocated from a cache of the kernel.
type Allocated struct {
	Cache string `json:"cache"`
	Bytes uint32 `json:"bytes"` // size of each buffer
	Count uint64 `json:"count"`
}

// Interrupted is the time of a CPU in soft interrupts, for the network and for all other uses.
type Interrupted struct {
	CPU  int           `json:"cpu"`
	Time time.Duration `json:"ns"`
}

// Delayed is the total time in which threads of a sandbox were runnable but had no CPU.
type Delayed struct {
	Sandbox  string        `json:"sandbox"`
	Function string        `json:"function,omitempty"`
	Time     time.Duration `json:"ns"`
}

// Sample returns the counts so far.
func (t *Tracer) Sample() (*Sample, error) {
	s := &Sample{Time: time.Now(), Missing: t.Missing()}
	var owners []Owner
	if t.cfg.Owners != nil {
		var err error
		if owners, err = t.cfg.Owners(); err != nil {
			return nil, err
		}
	}
	if err := t.count(s, owners); err != nil {
		return nil, err
	}
	if t.interrupts != nil {
		now, err := softirqs()
		if err != nil {
			return nil, err
		}
		for cpu, spent := range now {
			if cpu < len(t.interrupts) {
				spent -= t.interrupts[cpu]
			}
			s.SoftIRQ = append(s.SoftIRQ, Interrupted{cpu, spent})
		}
	}
	t.delay(s, owners)
	return s, nil
}

// count reads the tables of the programs.
func (t *Tracer) count(s *Sample, owners []Owner) error {
	namespaces := map[uint32]Owner{}
	for _, o := range owners {
		if len(o.PIDs) == 0 {
			continue
		}
		// A process that has just ended has no namespace, and the host's namespace has no owner.
		if inode, err := namespaceOf(fmt.Sprint(o.PIDs[0])); err == nil && inode != t.own {
			namespaces[uint32(inode)] = o
		}
	}
	if m := t.maps[retransmissions]; m != nil {
		var key connection
		var n uint64
		entries := m.Iterate()
		for entries.Next(&key, &n) {
			r := key.describe()
			r.Sandbox, r.Function, r.Count = namespaces[r.Namespace].ID, namespaces[r.Namespace].Name, n
			s.Retransmissions = append(s.Retransmissions, r)
		}
		// Concurrent changes to a table can abort the iteration; the next Sample reads the rest.
		if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
			return fmt.Errorf("read retransmissions: %w", err)
		}
	}
	if m := t.maps[drops]; m != nil {
		var reason uint32
		var n uint64
		entries := m.Iterate()
		for entries.Next(&reason, &n) {
			name := t.reasons[reason]
			if name == "" { // a reason defined by a subsystem
				name = fmt.Sprintf("%#x", reason)
			}
			s.Drops = append(s.Drops, Dropped{name, n})
		}
		if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
			return fmt.Errorf("read drops: %w", err)
		}
	}
	if m := t.maps[allocations]; m != nil {
		var key cache
		var n uint64
		entries := m.Iterate()
		for entries.Next(&key, &n) {
			s.Allocations = append(s.Allocations, Allocated{unix.ByteSliceToString(key.Name[:]), key.Size, n})
		}
		if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
			return fmt.Errorf("read allocations: %w", err)
		}
	}
	s.sort()
	return nil
}

func (s *Sample) sort() {
	slices.SortFunc(s.Retransmissions, func(a, b Retransmitted) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
	})
	slices.SortFunc(s.Drops, func(a, b Dropped) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason)) })
	slices.SortFunc(s.Allocations, func(a, b Allocated) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Cache, b.Cache)) })
	slices.SortFunc(s.RunQueue, func(a, b Delayed) int { return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Sandbox, b.Sandbox)) })
}

// delay adds the waiting time of the owners' threads since the last Sample. The time that a thread
// waited between the last Sample and its end is lost.
func (t *Tracer) delay(s *Sample, owners []Owner) {
	seen, delays := map[int]time.Duration{}, map[string]time.Duration{}
	for _, o := range owners {
		sum := t.delays[o.ID]
		for _, pid := range o.PIDs {
			for thread, waited := range runQueue(pid) {
				seen[thread] = waited
				// The kernel has reused the thread id: the count starts at zero.
				if before := t.waited[thread]; waited >= before {
					sum += waited - before
				} else {
					sum += waited
				}
			}
		}
		delays[o.ID] = sum
		s.RunQueue = append(s.RunQueue, Delayed{o.ID, o.Name, sum})
	}
	t.waited, t.delays = seen, delays
	s.sort()
}

// Since returns the counts between an earlier sample and s, without the counts that have not
// changed. CPUs are always listed.
func (s *Sample) Since(earlier *Sample) *Sample {
	d := &Sample{Time: s.Time, Missing: s.Missing}
	type place struct {
		local, remote netip.AddrPort
		namespace     uint32
	}
	connections := map[place]uint64{}
	for _, r := range earlier.Retransmissions {
		connections[place{r.Local, r.Remote, r.Namespace}] = r.Count
	}
	for _, r := range s.Retransmissions {
		if r.Count = grown(r.Count, connections[place{r.Local, r.Remote, r.Namespace}]); r.Count > 0 {
			d.Retransmissions = append(d.Retransmissions, r)
		}
	}
	reasons := map[string]uint64{}
	for _, x := range earlier.Drops {
		reasons[x.Reason] = x.Count
	}
	for _, x := range s.Drops {
		if x.Count = grown(x.Count, reasons[x.Reason]); x.Count > 0 {
			d.Drops = append(d.Drops, x)
		}
	}
	caches := map[string]uint64{}
	for _, x := range earlier.Allocations {
		caches[x.Cache] = x.Count
	}
	for _, x := range s.Allocations {
		if x.Count = grown(x.Count, caches[x.Cache]); x.Count > 0 {
			d.Allocations = append(d.Allocations, x)
		}
	}
	for i, x := range s.SoftIRQ {
		if i < len(earlier.SoftIRQ) {
			x.Time -= earlier.SoftIRQ[i].Time
		}
		d.SoftIRQ = append(d.SoftIRQ, x)
	}
	sandboxes := map[string]time.Duration{}
	for _, x := range earlier.RunQueue {
		sandboxes[x.Sandbox] = x.Time
	}
	for _, x := range s.RunQueue {
		if x.Time -= sandboxes[x.Sandbox]; x.Time > 0 {
			d.RunQueue = append(d.RunQueue, x)
		}
	}
	d.sort()
	return d
}

// grown returns the increase of a counter. A smaller value means that the counter was dropped and
// began again at zero.
func grown(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
