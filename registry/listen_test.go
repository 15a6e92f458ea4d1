package registry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/fre-engine/fre/internal/fretest"
)

// server serves a handler on a loopback address until stop is called.
func server(t testing.TB, h http.Handler) (stop func(), addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	return func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}, l.Addr().String()
}

// TestListen: Without TLS and users the registry listens only on loopback, unless the configuration
// insists.
func TestListen(t *testing.T) {
	fretest.CheckLeaks(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePair(t, cert, key, "first")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		cfg   ListenConfig
		wrong string
	}{
		{"loopback", ListenConfig{Address: "127.0.0.1:0"}, ""},
		{"all of loopback", ListenConfig{Address: "127.9.9.9:0"}, ""},
		{"name of loopback", ListenConfig{Address: "localhost:0"}, ""},
		{"socket", ListenConfig{Address: "unix:" + filepath.Join(dir, "socket")}, ""},
		{"socket again", ListenConfig{Address: "unix:" + filepath.Join(dir, "socket")}, ""},
		{"no socket", ListenConfig{Address: "unix:" + file}, "not a socket"},
		{"everywhere", ListenConfig{Address: ":0"}, ErrExposed.Error()},
		{"any address", ListenConfig{Address: "[::]:0"}, ErrExposed.Error()},
		{"name of any host", ListenConfig{Address: "localhost.example.org:0"}, ErrExposed.Error()},
		{"users without TLS", ListenConfig{Address: ":0", Users: true}, ErrExposed.Error()},
		{"TLS without users", ListenConfig{Address: ":0", CertFile: cert, KeyFile: key}, ErrExposed.Error()},
		{"both", ListenConfig{Address: ":0", CertFile: cert, KeyFile: key, Users: true}, ""},
		{"insecure", ListenConfig{Address: ":0", Insecure: true}, ""},
		{"certificate without a key", ListenConfig{Address: "127.0.0.1:0", CertFile: cert}, "TLS needs"},
		{"key of another", ListenConfig{Address: "127.0.0.1:0", CertFile: cert, KeyFile: cert}, "read TLS certificate"},
		{"no address", ListenConfig{Address: "5000", Insecure: true}, "missing port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Listen(t.Context(), tt.cfg)
			if err == nil {
				defer l.Close()
				if again, err := Listen(t.Context(), tt.cfg); strings.HasPrefix(tt.cfg.Address, "unix:") && (err == nil || !strings.Contains(err.Error(), "another process listens")) {
					_ = again.Close()
					t.Errorf("a second listener: %v", err)
				} else if err == nil {
					_ = again.Close()
				}
			}
			if tt.wrong == "" && err != nil || tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
				t.Errorf("%v; want an error that says %q", err, tt.wrong)
			}
		})
	}
}

// writePair writes a self-signed certificate for 127.0.0.1.
func writePair(t testing.TB, certFile, keyFile, organization string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	template.Subject.Organization = []string{organization}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// later gives a file a new time, whatever the clock of the file system.
func later(t testing.TB, file string) {
	t.Helper()
	info, err := os.Stat(file)
	if err == nil {
		err = os.Chtimes(file, time.Time{}, info.ModTime().Add(time.Second))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A TLS listener takes over a new certificate once both files are in place.
func TestTLS(t *testing.T) {
	fretest.CheckLeaks(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePair(t, cert, key, "first")
	l, err := Listen(t.Context(), ListenConfig{Address: "127.0.0.1:0", CertFile: cert, KeyFile: key})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: open(t, t.TempDir(), Config{}), ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() {
		_ = s.Close()
		<-done
	}()
	who := func() string {
		t.Helper()
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // which certificate it is, is looked at
		resp, err := c.Get("https://" + l.Addr().String() + "/v2/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.TLS.PeerCertificates[0].Subject.Organization[0]
	}
	if got := who(); got != "first" {
		t.Errorf("got the certificate of %q", got)
	}
	next, nextKey := filepath.Join(dir, "next.pem"), filepath.Join(dir, "nextkey.pem")
	writePair(t, next, nextKey, "second")
	later(t, next)
	if err := os.Rename(next, cert); err != nil {
		t.Fatal(err)
	}
	if got := who(); got != "first" {
		t.Errorf("between the two files: got the certificate of %q", got)
	}
	if err := os.Rename(nextKey, key); err != nil {
		t.Fatal(err)
	}
	if got := who(); got != "second" {
		t.Errorf("got the certificate of %q, want the second", got)
	}
}

// rereadUsers changes the file of users.
func rereadUsers(t *testing.T, users *Users, c client) {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("other"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(users.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		later(t, users.path)
	}
	as := func(user string) client { return client{t: t, base: c.base, user: user} }
	write("reader:" + string(hash) + ":write\n")
	c.want(as("reader:secret").do("GET", "/v2/", nil), 401, "UNAUTHORIZED")
	c.want(as("writer:secret").do("GET", "/v2/", nil), 401, "UNAUTHORIZED")
	as("reader:other").push("a", "x")
	write("a wrong line\n")
	as("reader:other").push("a", "x")
	if err := os.Remove(users.path); err != nil {
		t.Fatal(err)
	}
	as("reader:other").push("a", "x")
}

// TestReadUsers: A faulty file of users is refused with its line.
func TestReadUsers(t *testing.T) {
	const hash = "$2y$10$Hfk8HVEFr8BE4Nk4wFKhFODwDdOoEPxYFCDMCFNkDMUfOQZoKQsIm"
	for _, tt := range []struct{ name, src, wrong string }{
		{"good", "# who\n\na:" + hash + "\nb:" + hash + ":read\n  c:" + hash + ":write\r\n", ""},
		{"nobody", "# who\n", "names no user"},
		{"no hash", "a\n", "line 1 is not"},
		{"no name", ":" + hash, "line 1 is not"},
		{"clear password", "a:secret", "not a bcrypt hash"},
		{"other hash", "a:$apr1$x$y", "not a bcrypt hash"},
		{"twice", "a:" + hash + "\na:" + hash, "line 2"},
		{"other right", "a:" + hash + ":admin", "neither read nor write"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "users")
			if err := os.WriteFile(file, []byte(tt.src), 0o600); err != nil {
				t.Fatal(err)
			}
			u, err := ReadUsers(file, slog.New(slog.DiscardHandler))
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("%v; want an error that says %q", err, tt.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(u.byName) != 3 || u.byName["a"].writer || u.byName["b"].writer || !u.byName["c"].writer {
				t.Errorf("got %+v", u.byName)
			}
		})
	}
}
