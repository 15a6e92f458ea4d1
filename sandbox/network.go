package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox/egress"
)

// wayOut is the network of sandboxes with egress, made for the first such sandbox. A host
// without such sandboxes gets no link and no rule.
type wayOut struct {
	cfg        egress.Config
	resolvConf string // path of the file that becomes /etc/resolv.conf of sandboxes with egress

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

// egress returns the network; the first call makes the network.
func (w *wayOut) egress() (*egress.Network, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("sandbox host: %w", fs.ErrClosed)
	}
	if w.network != nil {
		return w.network, nil
	}
	n, err := egress.Open(w.cfg)
	if err != nil {
		return nil, &NoEgressError{err}
	}
	err = os.WriteFile(w.resolvConf, []byte(n.ResolvConf()), 0o644)
	if err == nil {
		err = os.Chmod(w.resolvConf, 0o644) // whatever the umask
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	w.network = n
	return n, nil
}

func (w *wayOut) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.network == nil {
		return nil
	}
	return errors.Join(w.network.Close(), os.Remove(w.resolvConf))
}
