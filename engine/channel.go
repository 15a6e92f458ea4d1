package engine

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/sandbox"
)

// channelConfig returns the configuration of the engine's end of an instance's channel. The
// channel calls sb only after the sandbox has an event.
func (p *program) channelConfig(id string, sb func() *sandbox.Sandbox) channel.Config {
	// Slow clients must not use up the memory that the function needs for the next answers.
	own := &heldAnswers{bytes: p.config.Resources.MemoryBytes / 4}
	return channel.Config{
		Log:     p.channelLog(id),
		LogPace: p.logs.Drop,
		Files:   openTmp(sb),
		Memory:  p.acquireMemory,
		Hold: func(what channel.Held) (release func(), full bool, err error) {
			now, lasts := heldFile{Held: what}, lasting(what, id, p.config.Resources.MemoryBytes)
			if lasts.sandbox != "" { // the memfd may grow to the limit at any time
				now = lasts
			}
			all, err := p.held.hold(lasts)
			if err != nil {
				return nil, false, err
			}
			if mine, err := own.hold(now); err == nil {
				return func() { mine(); all() }, false, nil
			}
			return all, true, nil // held, but beyond the instance's share
		},
	}
}

// answerMemory is a buffer with a part of a waiting answer.
type answerMemory struct {
	buffer.Handle
	program *program
}

// Release gives the buffer back.
func (l answerMemory) Release() {
	l.program.waiting.Add(-int64(len(l.Bytes())))
	l.Handle.Release()
}

// acquireMemory returns a buffer for an answer that waits for its client. One function gets at most
// as much as all functions have left free, less a tenth of the memory reserved for users that
// cannot do without a buffer. So a function alone gets nearly half of the memory, and a second
// function still finds some (Choudhury and Hahne, Dynamic queue length thresholds, 1998).
// Errors: ErrOverloaded at the function's share, ErrDegraded if no memory is free.
func (p *program) acquireMemory(size int) (channel.Buffer, error) {
	free, all := p.host.buffers.Free()
	if waits := p.waiting.Load(); waits+int64(size) > free-all/10 {
		p.host.metrics.refuse(reasonAnswers)
		return nil, fmt.Errorf("%w: unread answers of the function hold %d bytes of memory", ErrOverloaded, waits)
	}
	buf, err := buffer.Memory{Pool: p.host.buffers}.Acquire(size, 0)
	if err != nil {
		p.host.metrics.refuse(admission.Memory)
		return nil, fmt.Errorf("%w: %w", ErrDegraded, err)
	}
	p.waiting.Add(int64(len(buf.Bytes())))
	return answerMemory{buf, p}, nil
}

func openTmp(sb func() *sandbox.Sandbox) func() (*os.File, error) {
	return func() (*os.File, error) {
		dir, err := sb().Tmp()
		if errors.Is(err, os.ErrProcessDone) {
			err = fmt.Errorf("%w: %w", channel.ErrClosed, err)
		}
		return dir, err
	}
}

// socketpair returns the two ends of a channel. The poller watches ours. The caller passes
// theirs to the sandbox, then closes theirs.
func socketpair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make channel: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "channel")
	f := os.NewFile(uintptr(fds[0]), "channel")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("make channel: %w", err)
	}
	return c.(*net.UnixConn), theirs, nil
}
