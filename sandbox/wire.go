package sandbox

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
)

// The protocol described in spawner/wire.h.

const (
	wireVersion = 1
	maxPayload  = 4 << 20
	maxInline   = 64 << 10
	maxStrings  = 65536
	maxFDs      = 250

	maxParkedPayload = 16 << 10
	maxParkedStrings = 1024
)

type kind uint16

const (
	kindStart   kind = 0x01
	kindPark    kind = 0x02
	kindRun     kind = 0x03
	kindKill    kind = 0x10
	kindHello   kind = 0x81
	kindStarted kind = 0x82
	kindFailed  kind = 0x83
	kindExited  kind = 0x84
	kindParked  kind = 0x85
	kindTraced  kind = 0x86
)

const (
	flagCgroup2 = 1 << 0
	flagPin     = 1 << 1
	flagTrace   = 1 << 2
	flagForks   = 1 << 3
	flagTTY     = 1 << 4

	flagProcFiles = 1 << 5

	filtersFD  = 4
	maxFilters = 8
)

const (
	// Switches off the defences in [Defence].
	flagWithoutLandlock     = 1 << 16
	flagWithoutCapabilities = 1 << 17
	flagWithoutNoNewPrivs   = 1 << 18
	flagWithoutProcSubset   = 1 << 19
	flagWithoutKeyring      = 1 << 20
)

// Step is the step of a start at which the start failed.
type Step uint32

// The steps of a start, in order.
const (
	StepSetup        Step = iota + 1 // the spawner's own start
	StepMessage                      // the spawner refused the message
	StepClone                        // clone3
	StepCgroup                       // joining the control groups
	StepNetns                        // joining the network namespace
	StepRoot                         // placing the root
	StepProc                         // making /proc
	StepMount                        // placing a further mount; Detail names its target
	StepHostname                     // setting the host name
	StepSession                      // new session and key ring
	StepUserns                       // joining the user namespace
	StepIDs                          // setting user and group
	StepCapabilities                 // dropping capabilities
	StepLandlock                     // scoping by Landlock
	StepSeccomp                      // installing the system call filter
	StepFDs                          // placing and closing file descriptors
	StepRlimit                       // limit of open files
	StepDir                          // entering the working directory
	StepExec                         // executing Args[0]

	steps
)

var stepNames = [...]string{
	"", "setup", "message", "clone", "cgroup", "network namespace", "root", "proc", "mount",
	"hostname", "session", "user namespace", "ids", "capabilities", "landlock", "seccomp", "fds", "rlimit", "dir", "exec",
}

func (s Step) String() string {
	if int(s) < len(stepNames) {
		return stepNames[s]
	}
	return fmt.Sprintf("step %d", uint32(s))
}

// StartError reports the failed step of a start and the reason. errors.Is finds the errno.
type StartError struct {
	Step   Step
	Detail string // the path concerned, if any
	Err    unix.Errno
}

func (e *StartError) Error() string {
	if e.Detail != "" {
		return fmt.Sprintf("start sandbox: %s %s: %v", e.Step, e.Detail, e.Err)
	}
	return fmt.Sprintf("start sandbox: %s: %v", e.Step, e.Err)
}

func (e *StartError) Unwrap() error { return e.Err }

// Code distinguishes a command that cannot be executed, which is the caller's mistake, from a
// sandbox that cannot be created. The errno alone is ambiguous, because set-up steps also fail
// with ENOENT.
func (e *StartError) Code() failure.Code {
	switch {
	case e.Step == StepExec && e.Err == unix.ENOENT:
		return failure.CommandNotFound
	case e.Step == StepExec, e.Step == StepDir:
		return failure.CommandNotExec
	}
	return failure.Internal
}

// Next returns the user's next step for a directory, "" for the catalogue's.
func (e *StartError) Next() string {
	if e.Step == StepDir {
		return "name a directory that the container's user may enter (--workdir)"
	}
	return ""
}

// startHeader is struct fre_start.
type startHeader struct {
	Version   uint16
	Kind      kind
	Payload   uint32
	ID        uint64
	Flags     uint32
	Argc      uint32
	Envc      uint32
	Mounts    uint32
	UID       uint32
	GID       uint32
	Nofile    uint64
	FDPayload int16
	FDRoot    int16
	FDUserns  int16
	FDNetns   int16
	FDStdin   int16
	FDStdout  int16
	FDStderr  int16
	FDChannel int16
	FDCgroup  int16
	Cgroups   int16
	FDMount   int16
	FDControl int16
	FDReports int16
	Filter    int16
	NGroups   uint16
	Reserved  uint16

	Capabilities Capabilities
	Groups       [MaxGroups]uint32
}

// report is struct fre_report.
type report struct {
	Version  uint16
	Kind     kind
	PID      uint32
	ID       uint64
	Step     Step
	Error    int32
	Detail   uint32
	Code     int32
	Signal   int32
	Reserved uint32
	CPUUs    uint64
	MaxRSSKB uint64
}

// traceReport is struct fre_trace.
type traceReport struct {
	Version  uint16
	Kind     kind
	Reserved uint32
	ID       uint64
	Done     [steps]uint64
}

const (
	reportSize = 56
	traceSize  = 16 + 8*int(steps)
)

// parseReport parses one packet of exactly one report. trace is nil unless the report is
// TRACED.
func parseReport(b []byte) (r report, trace *traceReport, err error) {
	bad := func() error { return fmt.Errorf("report of %d bytes: %w", len(b), unix.EBADMSG) }
	switch len(b) {
	case reportSize:
		_, err = binary.Decode(b, binary.NativeEndian, &r)
	case traceSize:
		trace = &traceReport{}
		_, err = binary.Decode(b, binary.NativeEndian, trace)
		r.Version, r.Kind, r.ID = trace.Version, trace.Kind, trace.ID
	default:
		return r, nil, bad()
	}
	if err != nil {
		return r, nil, err
	}
	if r.Version != wireVersion {
		return r, nil, fmt.Errorf("report of version %d: %w", r.Version, unix.EBADMSG)
	}
	if (trace != nil) != (r.Kind == kindTraced) {
		return r, nil, bad()
	}
	return r, trace, nil
}

// nextReport returns the length of the first report in a stream; 0 if the report is incomplete.
func nextReport(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	size := reportSize
	if kind(binary.NativeEndian.Uint16(b[2:])) == kindTraced {
		size = traceSize
	}
	if len(b) < size {
		return 0
	}
	return size
}

// killMessage returns the message that asks the spawner to kill sandbox id.
func killMessage(id uint64) []byte {
	b := make([]byte, 16)
	binary.NativeEndian.PutUint16(b, wireVersion)
	binary.NativeEndian.PutUint16(b[2:], uint16(kindKill))
	binary.NativeEndian.PutUint64(b[8:], id)
	return b
}
