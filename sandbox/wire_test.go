package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestWireLayout: The structs of wire.go have the compiled layout of wire.h.
func TestWireLayout(t *testing.T) {
	program, err := openProgram()
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	out, err := spawnerCommand(program, nil, "layout").Output()
	if err != nil {
		t.Fatal(err)
	}

	var want strings.Builder
	for _, c := range []struct {
		name  string
		value int
	}{
		{"FRE_WIRE_VERSION", wireVersion},
		{"FRE_MAX_PAYLOAD", maxPayload},
		{"FRE_MAX_INLINE", maxInline},
		{"FRE_MAX_STRINGS", maxStrings},
		{"FRE_MAX_FDS", maxFDs},
		{"FRE_MAX_GROUPS", MaxGroups},
		{"FRE_MAX_PARKED_PAYLOAD", maxParkedPayload},
		{"FRE_MAX_PARKED_STRINGS", maxParkedStrings},
		{"FRE_FILTERS_FD", filtersFD},
		{"FRE_MAX_FILTERS", maxFilters},
		{"FRE_START", int(kindStart)},
		{"FRE_PARK", int(kindPark)},
		{"FRE_RUN", int(kindRun)},
		{"FRE_KILL", int(kindKill)},
		{"FRE_HELLO", int(kindHello)},
		{"FRE_STARTED", int(kindStarted)},
		{"FRE_FAILED", int(kindFailed)},
		{"FRE_EXITED", int(kindExited)},
		{"FRE_PARKED", int(kindParked)},
		{"FRE_TRACED", int(kindTraced)},
		{"FRE_CGROUP2", flagCgroup2},
		{"FRE_PIN", flagPin},
		{"FRE_TRACE", flagTrace},
		{"FRE_FORKS", flagForks},
		{"FRE_TTY", flagTTY},
		{"FRE_PROC_FILES", flagProcFiles},
		{"FRE_WITHOUT_LANDLOCK", flagWithoutLandlock},
		{"FRE_WITHOUT_CAPABILITIES", flagWithoutCapabilities},
		{"FRE_WITHOUT_NO_NEW_PRIVS", flagWithoutNoNewPrivs},
		{"FRE_WITHOUT_PROC_SUBSET", flagWithoutProcSubset},
		{"FRE_WITHOUT_KEYRING", flagWithoutKeyring},
		{"FRE_STEP_SETUP", int(StepSetup)},
		{"FRE_STEP_MESSAGE", int(StepMessage)},
		{"FRE_STEP_CLONE", int(StepClone)},
		{"FRE_STEP_CGROUP", int(StepCgroup)},
		{"FRE_STEP_NETNS", int(StepNetns)},
		{"FRE_STEP_ROOT", int(StepRoot)},
		{"FRE_STEP_PROC", int(StepProc)},
		{"FRE_STEP_MOUNT", int(StepMount)},
		{"FRE_STEP_HOSTNAME", int(StepHostname)},
		{"FRE_STEP_SESSION", int(StepSession)},
		{"FRE_STEP_USERNS", int(StepUserns)},
		{"FRE_STEP_IDS", int(StepIDs)},
		{"FRE_STEP_CAPABILITIES", int(StepCapabilities)},
		{"FRE_STEP_LANDLOCK", int(StepLandlock)},
		{"FRE_STEP_SECCOMP", int(StepSeccomp)},
		{"FRE_STEP_FDS", int(StepFDs)},
		{"FRE_STEP_RLIMIT", int(StepRlimit)},
		{"FRE_STEP_DIR", int(StepDir)},
		{"FRE_STEP_EXEC", int(StepExec)},
		{"FRE_STEPS", int(steps)},
	} {
		fmt.Fprintln(&want, c.name, c.value)
	}
	layout(&want, "fre_start", startHeader{})
	layout(&want, "fre_report", report{})
	layout(&want, "fre_trace", traceReport{})
	if diff := cmp.Diff(want.String(), string(out)); diff != "" {
		t.Errorf("wire.go (-) and wire.h (+) differ:\n%s", diff)
	}
	if got := binary.Size(report{}); got != reportSize {
		t.Errorf("reportSize is %d, want %d", reportSize, got)
	}
}

// layout prints a struct as fre-spawner does. C's fields are Go's in snake case.
func layout(w *strings.Builder, name string, v any) {
	typ := reflect.TypeOf(v)
	fmt.Fprintln(w, name, binary.Size(v))
	offset := 0 // encoding/binary adds no padding
	for i := range typ.NumField() {
		f := typ.Field(i)
		fmt.Fprintf(w, "%s.%s %d %d\n", name, snake(f.Name), offset, f.Type.Size())
		offset += int(f.Type.Size())
	}
}

func snake(s string) string {
	for _, r := range []struct{ from, to string }{
		{"FD", "fd_"}, {"CPUUs", "cpu_us"}, {"MaxRSSKB", "max_rss_kb"},
	} {
		if rest, ok := strings.CutPrefix(s, r.from); ok {
			return r.to + strings.ToLower(rest)
		}
	}
	return strings.ToLower(s)
}

// TestParseReport: A report of the spawner is parsed, or refused if malformed.
func TestParseReport(t *testing.T) {
	good := make([]byte, reportSize)
	binary.NativeEndian.PutUint16(good, wireVersion)
	trace := make([]byte, traceSize)
	binary.NativeEndian.PutUint16(trace, wireVersion)
	binary.NativeEndian.PutUint16(trace[2:], uint16(kindTraced))
	for _, test := range []struct {
		name string
		in   []byte
		ok   bool
	}{
		{"good", good, true},
		{"trace", trace, true},
		{"trace as a report", trace[:reportSize], false},
		{"report as a trace", append(good[:reportSize:reportSize], make([]byte, traceSize-reportSize)...), false},
		{"empty", nil, false},
		{"short", good[:reportSize-1], false},
		{"long", append(good[:reportSize:reportSize], 0), false},
		{"other version", make([]byte, reportSize), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := parseReport(test.in)
			if (err == nil) != test.ok {
				t.Errorf("got %v, want ok %v", err, test.ok)
			}
		})
	}
}

// TestMalformedStart: The spawner refuses each malformed message and serves on.
func TestMalformedStart(t *testing.T) {
	h := openHost(t)
	whole := func() *startMessage {
		m := newStartMessage(kindStart, 1<<40)
		for range 6 {
			m.addFD(int(h.devices.Fd()))
		}
		m.header.FDRoot, m.header.FDUserns = 0, 1
		m.header.FDStdin, m.header.FDStdout, m.header.FDStderr = 2, 3, 4
		m.args, m.dir, m.host = []string{"/bin/prog"}, "/", "host"
		m.seal()
		return m
	}
	for _, test := range []struct {
		name   string
		change func(*startMessage)
	}{
		{"version", func(m *startMessage) { m.header.Version = 9 }},
		{"kind", func(m *startMessage) { m.header.Kind = 9 }},
		{"no arguments", func(m *startMessage) { m.header.Argc = 0 }},
		{"too many arguments", func(m *startMessage) { m.header.Argc = 1 << 31 }},
		{"counts that overflow", func(m *startMessage) { m.header.Argc, m.header.Envc = 1<<31, 1<<31 }},
		{"more arguments than strings", func(m *startMessage) { m.header.Argc = 2 }},
		{"more strings than counted", func(m *startMessage) { m.strings = append(m.strings, 'x', 0) }},
		{"string without end", func(m *startMessage) { m.strings = m.strings[:len(m.strings)-1] }},
		{"no root", func(m *startMessage) { m.header.FDRoot = -1 }},
		{"fd of a control socket", func(m *startMessage) { m.header.FDControl = 5 }},
		{"fd of a parked sandbox's reports", func(m *startMessage) { m.header.FDReports = 5 }},
		{"fd out of range", func(m *startMessage) { m.header.FDStderr = 6 }},
		{"fd negative", func(m *startMessage) { m.header.FDChannel = -2 }},
		{"cgroups out of range", func(m *startMessage) { m.header.FDCgroup, m.header.Cgroups = 5, 2 }},
		{"mounts out of range", func(m *startMessage) { m.header.FDMount, m.header.Mounts = 5, 2 }},
		{"inline and apart", func(m *startMessage) { m.header.FDPayload = 5 }},
		{"too many groups", func(m *startMessage) { m.header.NGroups = MaxGroups + 1 }},
		{"terminal without a root", func(m *startMessage) { m.header.FDRoot, m.header.Flags = -1, flagTTY }},
		{"filter unknown", func(m *startMessage) { m.header.Filter = maxFilters }},
		{"filter negative", func(m *startMessage) { m.header.Filter = -2 }},
		{"cgroup v2 without a directory", func(m *startMessage) { m.header.Flags = flagCgroup2 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := whole()
			test.change(m)
			sb := &Sandbox{host: &h.shared, number: m.header.ID, pidfd: -1, tmp: -1, ready: make(chan struct{})}
			if err := h.spawners.slots[0].s.start(sb, m); err != nil {
				t.Fatal(err)
			}
			<-sb.ready
			var e *StartError
			if !errors.As(sb.err, &e) || e.Step != StepMessage || (e.Err != unix.EBADMSG && e.Err != unix.E2BIG) {
				t.Errorf("got %v, want a refused message", sb.err)
			}
		})
	}
}
