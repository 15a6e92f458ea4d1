package adapter

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// children are the processes that the adapter has started. As the sandbox's first process the
// adapter also reaps orphans.
type children struct {
	mu      sync.Mutex
	running map[int]*child
}

// child is one process.
type child struct {
	pid    int
	group  bool            // leads a process group; signals go to the group too
	exited chan struct{}   // closed after the process is reaped
	status unix.WaitStatus // valid after exited is closed
}

func newChildren() *children {
	c := &children{running: map[int]*child{}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	go func() {
		for range signals {
			c.reap()
		}
	}()
	return c
}

func (c *children) start(program string, args []string, attributes *syscall.ProcAttr) (*child, error) {
	c.mu.Lock() // reap must not run before the child is registered
	defer c.mu.Unlock()
	pid, err := syscall.ForkExec(program, args, attributes)
	if err != nil {
		return nil, err
	}
	p := &child{pid: pid, group: attributes.Sys.Setpgid, exited: make(chan struct{})}
	c.running[pid] = p
	return p, nil
}

// reap reaps all ended processes: several may share one signal.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		if p := c.running[pid]; p != nil {
			delete(c.running, pid)
			p.status = status
			close(p.exited)
		}
	}
}

// signal sends a signal to the process, unless it has ended.
func (p *child) signal(sig syscall.Signal) {
	select {
	case <-p.exited: // the pid may belong to another process
	default:
		if p.group {
			_ = syscall.Kill(-p.pid, sig)
		}
		_ = syscall.Kill(p.pid, sig) // the process may have changed its group
	}
}

// end describes the exit status of an ended process.
func (p *child) end() string {
	end := fmt.Sprintf("exit status %d", p.status.ExitStatus())
	if p.status.Signaled() {
		end = "signal " + unix.SignalName(p.status.Signal())
	}
	return end
}
