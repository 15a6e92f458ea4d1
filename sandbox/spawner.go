package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spawners are the spawner processes of a host.
type spawners struct {
	host     *shared
	program  *os.File       // fre-spawner
	filters  *os.File       // system call filters
	landlock atomic.Uint32  // ABI of Landlock, 0 without Landlock
	reading  sync.WaitGroup // readers of spawners
	slots    []slot
}

// slot holds one of the spawners. The next start replaces a spawner that has ended.
type slot struct {
	mu sync.Mutex
	s  *spawner
}

// startWithin bounds the wait for a spawner's answer, which normally takes a millisecond. A
// spawner that is stopped or stuck in the kernel must not block the engine.
const startWithin = time.Minute

// pick returns the spawner for a turn, and restarts a spawner that has ended.
func (p *spawners) pick(turn uint64) (*spawner, error) {
	slot := &p.slots[turn%uint64(len(p.slots))]
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if slot.s != nil && !slot.s.ended() {
		return slot.s, nil
	}
	s, err := p.newSpawner()
	if err != nil {
		return nil, err
	}
	slot.s = s
	p.reading.Go(func() {
		if err := s.read(); !errors.Is(err, net.ErrClosed) {
			p.host.log.Error("spawner ended, and all its sandboxes", "error", err)
		}
	})
	return s, nil
}

// stop ends the spawners, and returns after their sandboxes have got their ends.
func (p *spawners) stop() {
	for i := range p.slots {
		if s := p.slots[i].s; s != nil {
			_ = s.conn.Close() // the spawner ends at end of file; the reader waits for that
		}
	}
	p.reading.Wait()
}

// spawner is one running fre-spawner and the socket to it.
type spawner struct {
	host *shared
	cmd  *exec.Cmd
	conn *net.UnixConn

	mu   sync.Mutex
	live map[uint64]*Sandbox // started or requested
	gone bool                // no further start may be sent
}

// socketBuffer is large enough for a burst of starts to queue in the kernel.
const socketBuffer = 1 << 20

// newSpawner runs fre-spawner and waits for the end of its set-up.
func (p *spawners) newSpawner() (*spawner, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "spawner"), os.NewFile(uintptr(pair[1]), "engine")
	defer ours.Close()
	defer theirs.Close()
	if err := unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer); err != nil {
		return nil, fmt.Errorf("set send buffer: %w", err)
	}
	generic, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	conn := generic.(*net.UnixConn)

	cmd := spawnerCommand(p.program, []*os.File{theirs, p.filters}, "spawn")
	// The spawner is pid 1 of its own namespace: when the spawner ends, for any reason, the
	// kernel kills every sandbox.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("start spawner: %w", err)
	}
	_ = theirs.Close()
	s := &spawner{host: p.host, cmd: cmd, conn: conn, live: map[uint64]*Sandbox{}}
	abi, err := s.hello()
	if err != nil {
		_ = s.conn.Close()
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		return nil, err
	}
	p.landlock.Store(abi)
	return s, nil
}

// helloWithin bounds a spawner's set-up, which takes a millisecond.
const helloWithin = 10 * time.Second

// hello waits for the end of the set-up, and returns the ABI of Landlock.
func (s *spawner) hello() (landlock uint32, err error) {
	if err := s.conn.SetReadDeadline(time.Now().Add(helloWithin)); err != nil {
		return 0, fmt.Errorf("wait for spawner: %w", err)
	}
	defer func() { _ = s.conn.SetReadDeadline(time.Time{}) }()
	r, _, fd, err := s.receive(make([]byte, reportSize+1), make([]byte, unix.CmsgSpace(4)))
	if fd >= 0 {
		unix.Close(fd)
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("wait for spawner: %w", err)
	case r.Kind == kindFailed:
		return 0, &StartError{Step: r.Step, Err: unix.Errno(r.Error)}
	case r.Kind != kindHello:
		return 0, fmt.Errorf("spawner said %#x: %w", r.Kind, unix.EBADMSG)
	}
	return r.Detail, nil
}

// receive reads one report and its fd, -1 if none.
func (s *spawner) receive(buf, oob []byte) (report, *traceReport, int, error) {
	n, oobn, _, _, err := s.conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return report{}, nil, -1, err
	}
	fd := -1
	if oobn > 0 {
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return report{}, nil, -1, err
		}
		for _, m := range messages {
			rights, err := unix.ParseUnixRights(&m)
			if err == nil && len(rights) == 1 {
				fd = rights[0]
			}
		}
	}
	r, trace, err := parseReport(buf[:n])
	return r, trace, fd, err
}

// errHung is the error of the start that discovered the hang.
var errHung = errors.New("spawner did not answer and was killed")

// ended reports whether the spawner accepts no more starts.
func (s *spawner) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// start registers sb and sends its START message. After an error the caller releases sb;
// otherwise the reader does.
func (s *spawner) start(sb *Sandbox, m *startMessage) error {
	inline := len(m.strings) <= maxInline
	if !inline {
		payload, err := payloadFile(m.strings)
		if err != nil {
			return fmt.Errorf("write start message: %w", err)
		}
		defer unix.Close(payload)
		m.header.FDPayload = m.addFD(payload)
	}
	if len(m.fds) > maxFDs {
		return &StartError{Step: StepMessage, Err: unix.E2BIG}
	}
	packet, err := m.encode(inline)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		return errSpawnerGone
	}
	s.live[sb.number] = sb
	s.mu.Unlock()
	// The socket has room unless the spawner hangs. All starts share the deadline: a later
	// start only extends it.
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.host.startWithin))
	_, _, err = s.conn.WriteMsgUnix(packet, unix.UnixRights(m.fds...), nil)
	switch {
	case err == nil:
		return nil
	case s.take(sb.number) == nil:
		return nil // the reader has noticed the end and releases sb
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.hung()
		return errHung
	case isClosed(err):
		return errSpawnerGone
	}
	return fmt.Errorf("send start message: %w", err)
}

// isClosed reports whether one of the socket's ends is closed.
func isClosed(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed)
}

// kill has the spawner kill a sandbox. Do not call kill in the reader's goroutine: the spawner
// may be waiting for the reader.
func (s *spawner) kill(id uint64) {
	// An error means that the spawner and the sandbox are gone.
	_, _, _ = s.conn.WriteMsgUnix(killMessage(id), nil, nil)
}

// hung kills a spawner that has not answered in time; its reader does the rest.
func (s *spawner) hung() { _ = s.cmd.Process.Kill() }

// take removes a sandbox from the live sandboxes and returns it; nil if absent.
func (s *spawner) take(id uint64) *Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.live[id]
	delete(s.live, id)
	return sb
}

func (s *spawner) get(id uint64) *Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[id]
}

// read dispatches reports until the spawner ends, then ends all its sandboxes.
func (s *spawner) read() error {
	buf, oob := make([]byte, max(reportSize, traceSize)+1), make([]byte, unix.CmsgSpace(4))
	var err error
	for {
		var r report
		var trace *traceReport
		var pidfd int
		if r, trace, pidfd, err = s.receive(buf, oob); err != nil {
			if pidfd >= 0 {
				unix.Close(pidfd)
			}
			break
		}
		if !s.report(r, trace, pidfd) && pidfd >= 0 {
			unix.Close(pidfd)
		}
	}
	// No process of the spawner may outlive the socket. When Wait returns, the kernel has
	// killed and reaped the whole pid namespace.
	_ = s.conn.Close()
	_ = s.cmd.Process.Kill()
	waitErr := s.cmd.Wait()
	s.mu.Lock()
	s.gone = true
	live := s.live
	s.live = map[uint64]*Sandbox{}
	s.mu.Unlock()
	for _, sb := range live {
		sb.exited(report{Kind: kindExited, Code: -1, Signal: int32(unix.SIGKILL)})
	}
	return fmt.Errorf("%w: %w", err, waitErr)
}

// report hands a report to its sandbox, and returns whether the sandbox took the pidfd.
func (s *spawner) report(r report, trace *traceReport, pidfd int) (took bool) {
	switch r.Kind {
	case kindStarted:
		return s.reportStarted(r.ID, pidfd)
	case kindFailed:
		if sb := s.take(r.ID); sb != nil {
			sb.failed(r)
		}
	case kindExited:
		if sb := s.take(r.ID); sb != nil {
			sb.exited(r)
		}
	case kindTraced:
		if sb := s.get(r.ID); sb != nil {
			sb.clock.add(trace)
		}
	case kindStart, kindPark, kindRun, kindHello, kindKill, kindParked: // a running spawner sends none of these
	}
	return false
}

func (s *spawner) reportStarted(id uint64, pidfd int) (took bool) {
	sb := s.get(id)
	if sb == nil {
		return false
	}
	if pidfd < 0 {
		// The kernel drops the pidfd if the engine has no free fd. A sandbox out of the
		// engine's reach must not run.
		sb.unreachable()
		s.host.ending.Go(func() { s.kill(id) })
		return false
	}
	sb.started(pidfd)
	return true
}
