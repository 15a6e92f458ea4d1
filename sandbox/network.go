package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fre-engine/fre/sandbox/egress"
)

// wayOut is the network of sandboxes with egress, made when the first needs it:
// a host whose functions have none sees no link and no rule of it.
type wayOut struct {
	mu      sync.Mutex
	network *egress.Network
	closed  bool
}

// NoEgressError says why this host gives no sandbox a way out. It hides the errno:
// a feature that the kernel lacks is no missing file or function.
type NoEgressError struct{ Reason error }

func (e *NoEgressError) Error() string {
	return fmt.Sprintf("no egress on this host: %v (fre doctor says what it lacks)", e.Reason)
}

// resolvConf is the file that sandboxes with egress find as /etc/resolv.conf.
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

// CheckNetwork says whether sandboxes of that network can be started here; where
// not, the error names what to do about it.
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

// lease is a network namespace on loan; the zero value is the host's network.
type lease struct {
	file   *os.File     // what setns(2) joins; stays the namespace's
	give   func()       // gives it back
	queued func() int64 // what netlink sockets in it hold
}

// network leases the namespace that spec's sandbox is to join.
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
