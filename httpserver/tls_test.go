package httpserver_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// writeCertificate writes a certificate for name and 127.0.0.1, and its key, into dir.
func writeCertificate(t testing.TB, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func certificate(t testing.TB) *httpserver.Certificate {
	t.Helper()
	certFile, keyFile := writeCertificate(t, t.TempDir(), "localhost")
	c, err := httpserver.LoadCertificate(certFile, keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The next handshake uses changed files. While key and certificate do not match, the server uses
// the files before the change.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := writeCertificate(t, dir, "one")
	var log bytes.Buffer
	c, err := httpserver.LoadCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	name := func() string {
		t.Helper()
		got, err := c.Get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.Leaf.Subject.CommonName
	}
	age := func(file string, by time.Duration) { // file systems count time in steps
		t.Helper()
		if err := os.Chtimes(file, time.Time{}, time.Now().Add(by)); err != nil {
			t.Fatal(err)
		}
	}
	if got := name(); got != "one" || c.Err() != nil {
		t.Fatalf("got %q, %v", got, c.Err())
	}
	other := t.TempDir()
	newCert, newKey := writeCertificate(t, other, "two")
	if err := os.Rename(newCert, certFile); err != nil {
		t.Fatal(err)
	}
	age(certFile, time.Hour)
	if got := name(); got != "one" || c.Err() == nil {
		t.Errorf("with a certificate of another key: %q, %v", got, c.Err())
	}
	if err := os.Rename(newKey, keyFile); err != nil {
		t.Fatal(err)
	}
	age(keyFile, time.Hour)
	if got := name(); got != "two" || c.Err() != nil {
		t.Errorf("with both: %q, %v", got, c.Err())
	}
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	if got := name(); got != "two" || c.Err() == nil {
		t.Errorf("without a file: %q, %v", got, c.Err())
	}
	_ = name()
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings, want one for each fault:\n%s", n, &log)
	}
	if _, err := httpserver.LoadCertificate(certFile, keyFile, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("loads a file that is missing")
	}
}

// Input without TLS, or silence, ends the connection.
func TestHandshake(t *testing.T) {
	fretest.CheckLeaks(t)
	cfg := httpserver.Config{Handler: everything(t), TLS: &tls.Config{GetCertificate: certificate(t).Get}}
	addr := start(t, cfg)
	if got := exchange(t, addr, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.0 400 ") || !strings.Contains(got, "https://") {
		t.Errorf("plain: got %q", got)
	}
	cfg.HeadTimeout = 100 * time.Millisecond
	if got := exchange(t, start(t, cfg), ""); got != "" {
		t.Errorf("silence: got %q", got)
	}
	c := tls.Client(dial(t, addr), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"spdy/3"}})
	if err := c.Handshake(); err == nil {
		t.Error("a protocol that is not there is agreed on")
	}
}

// The handler sees the client's protocol.
func TestProtocol(t *testing.T) {
	cfg := httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		text := x.Protocol() + " of " + string(x.Host)
		if x.Secure() {
			text += ", secure"
		}
		check(t, x.Send(200, []byte(text)))
	})}
	plain := start(t, cfg)
	cfg.TLS = &tls.Config{GetCertificate: certificate(t).Get}
	secure := start(t, cfg)
	if got := exchange(t, plain, "GET / HTTP/1.0\r\nHost: a\r\n\r\n"); !strings.HasSuffix(got, "\r\n\r\nHTTP/1.0 of a") {
		t.Errorf("got %q", got)
	}
	for _, test := range []struct {
		url   string
		http2 bool
		want  string
	}{
		{"http://" + plain, false, "HTTP/1.1 of " + plain},
		{"http://" + plain, true, "HTTP/2 of " + plain},
		{"https://" + secure, false, "HTTP/1.1 of " + secure + ", secure"},
		{"https://" + secure, true, "HTTP/2 of " + secure + ", secure"},
	} {
		tr := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		tr.Protocols.SetHTTP1(!test.http2)
		tr.Protocols.SetHTTP2(test.http2)
		tr.Protocols.SetUnencryptedHTTP2(test.http2)
		resp, err := (&http.Client{Transport: tr}).Get(test.url)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		tr.CloseIdleConnections()
		if err != nil || string(got) != test.want {
			t.Errorf("got %q, %v, want %q", got, err, test.want)
		}
	}
}
