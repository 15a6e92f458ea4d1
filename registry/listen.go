package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// ErrExposed reports an address that other hosts can reach, without TLS or without users: other
// hosts could read passwords or push.
var ErrExposed = errors.New("other hosts can reach the address: TLS and users are required")

// ListenConfig configures [Listen].
type ListenConfig struct {
	// Address is HOST:PORT, or unix:PATH.
	Address string

	// CertFile and KeyFile are PEM files for TLS; "" for none. They are read again after a
	// change.
	CertFile, KeyFile string

	// Users tells that the registry requires names and passwords.
	Users bool

	// Insecure allows addresses that are otherwise refused with ErrExposed.
	Insecure bool
}

// exposed reports whether other hosts must not reach the registry.
func (c *ListenConfig) exposed() bool { return !c.Insecure && (c.CertFile == "" || !c.Users) }

// Listen returns a listener; the caller closes it. On any address but a loopback address or a
// Unix socket it requires TLS and users.
func Listen(ctx context.Context, c ListenConfig) (net.Listener, error) {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("TLS needs a certificate and a key")
	}
	socket, isUnix := strings.CutPrefix(c.Address, "unix:")
	if !isUnix && !isLoopback(c.Address) && c.exposed() {
		return nil, fmt.Errorf("listen on %s: %w", c.Address, ErrExposed)
	}
	var pair *keyPair
	if c.CertFile != "" {
		pair = &keyPair{certFile: c.CertFile, keyFile: c.KeyFile}
		if _, err := pair.get(nil); err != nil {
			return nil, err
		}
	}
	network, address := "tcp", c.Address
	if isUnix {
		network, address = "unix", socket
		if err := removeSocket(socket); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", c.Address, err)
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if pair != nil {
		// HTTP/1.1 only: for blobs, a connection per request is faster than streams of one
		// connection.
		l = tls.NewListener(l, &tls.Config{GetCertificate: pair.get, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12})
	}
	return l, nil
}

// isLoopback reports whether only programs on this host can reach an address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// removeSocket removes a socket without a listener.
func removeSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the path exists and is not a socket")
	}
	if c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}); err == nil {
		return errors.Join(errors.New("another process listens on the socket"), c.Close())
	}
	return os.Remove(path)
}

// keyPair is a certificate that follows changes of its files.
type keyPair struct {
	certFile, keyFile string

	mu      sync.Mutex
	read    time.Time // modification time of the certificate's file
	current *tls.Certificate
}

// get returns the current certificate. While the new files are inconsistent it returns the
// previous certificate, because certificate and key are replaced one after the other.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.certFile)
	if err == nil && k.current != nil && info.ModTime().Equal(k.read) {
		return k.current, nil
	}
	var cert tls.Certificate
	if err == nil {
		cert, err = tls.LoadX509KeyPair(k.certFile, k.keyFile)
	}
	switch {
	case err == nil:
		k.current, k.read = &cert, info.ModTime()
	case k.current == nil:
		return nil, fmt.Errorf("read TLS certificate: %w", err)
	}
	return k.current, nil
}
