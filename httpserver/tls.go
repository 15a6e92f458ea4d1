package httpserver

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

func isTLS(nc net.Conn) bool {
	_, ok := nc.(*tls.Conn)
	return ok
}

// isMethod reports whether a request line can begin with b.
func isMethod(b []byte) bool {
	for _, c := range b {
		if c == ' ' || c == '/' {
			return true
		}
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

// Certificate is a certificate and its key in two files, reloaded when a file changes. Its
// methods are safe for concurrent use.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	of      [2]version
	err     error // of the last reload
}

// version identifies the content of a file by time and size.
type version struct {
	modified time.Time
	size     int64
}

// LoadCertificate reads both files, in PEM. Later errors are logged once each.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log}
	if _, err := c.Get(nil); err != nil {
		return nil, err
	}
	return c, nil
}

// Get is for GetCertificate of a tls.Config. If the files are unreadable or do not match, Get
// keeps the last certificate: the two files are not replaced at the same instant.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.versions()
	if err == nil && (c.current == nil || now != c.of) {
		var next tls.Certificate
		if next, err = tls.LoadX509KeyPair(c.certFile, c.keyFile); err == nil {
			c.current, c.of = &next, now
		}
	}
	if c.current == nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	if err != nil && (c.err == nil || c.err.Error() != err.Error()) {
		c.log.Warn("the TLS certificate's files cannot be used: the server keeps the earlier certificate", "error", err)
	}
	c.err = err
	return c.current, nil
}

// Err returns why the current files were not usable at the last handshake, nil if they were.
func (c *Certificate) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Certificate) versions() (of [2]version, err error) {
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return of, err
		}
		of[i] = version{info.ModTime(), info.Size()}
	}
	return of, nil
}
