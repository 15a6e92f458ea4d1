package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox/egress"
)

// wayOut is the network of sandboxes with egress, made for the first such sandbox. A host
// without such sandboxes gets no link and no rule.
type wayOut struct {
	mu      sync.Mutex
	network *egress.Network
	closed  bool
}

// NoEgressError is the reason for which this host cannot provide egress. NoEgressError hides
// the errno: a missing feature of the kernel is neither a missing file nor a missing function.
type NoEgressError struct{ Reason error }

func (e *NoEgressError) Error() string {
	return fmt.Sprintf("no egress on the host: %v (run fre doctor to see missing features)", e.Reason)
}

// Code returns [failure.Unsupported].
func (e *NoEgressError) Code() failure.Code { return failure.Unsupported }

// resolvConf is the host's file that becomes /etc/resolv.conf of sandboxes with egress.
func resolvConf(dir string) string { return filepath.Join(dir, "resolv.conf") }

func (h *Host) egress() (*egress.Network, error) {
	w := &h.wayOut
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("sandbox host: %w", fs.ErrClosed)
	}
	if w.network != nil {
		return w.network, nil
	}
	cfg := h.cfg.Egress
	cfg.Busy = h.Busy
	n, err := egress.Open(cfg)
	if err != nil {
		return nil, &NoEgressError{err}
	}
	file := resolvConf(h.cfg.Dir)
	err = os.WriteFile(file, []byte(n.ResolvConf()), 0o644)
	if err == nil {
		err = os.Chmod(file, 0o644) // whatever the umask
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	w.network = n
	return n, nil
}

func (w *wayOut) close(dir string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.network == nil {
		return nil
	}
	return errors.Join(w.network.Close(), os.Remove(resolvConf(dir)))
}

// CheckNetwork returns nil if the host can start sandboxes with network n and policy p; else
// the error names the remedy.
func (h *Host) CheckNetwork(n Network, p egress.Policy) error {
	if n != NetworkEgress {
		return nil
	}
	network, err := h.egress()
	if err != nil {
		return err
	}
	return network.Check(p)
}

// lease is the lease of a network namespace; the zero value is the host's network.
type lease struct {
	file   *os.File     // for setns(2); owned by the namespace
	give   func()       // ends the lease
	queued func() int64 // bytes in the namespace's netlink sockets
}

// network leases the network namespace for spec's sandbox.
func (h *Host) network(spec *Spec) (lease, error) {
	switch spec.Network {
	case NetworkHost:
		return lease{}, nil
	case NetworkEgress:
		n, err := h.egress()
		if err != nil {
			return lease{}, err
		}
		s, err := n.Acquire(spec.Egress)
		if err != nil {
			return lease{}, err
		}
		return lease{s.File(), func() { n.Release(s) }, s.Queued}, nil
	case NetworkNone:
	}
	s, err := h.networks.Acquire()
	if err != nil {
		return lease{}, err
	}
	return lease{s.File(), func() { h.networks.Release(s) }, s.Queued}, nil
}
