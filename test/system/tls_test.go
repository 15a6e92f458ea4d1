package system

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// With a certificate the gateway speaks TLS, with HTTP/2 or HTTP/1.1 by the client's choice. A
// replaced certificate takes effect at once.
func TestTLS(t *testing.T) {
	dir := daemontest.Dir(t)
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	trusted := x509.NewCertPool()
	replace := func(serial int64) {
		t.Helper()
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for file, block := range map[string]*pem.Block{keyFile: {Type: "PRIVATE KEY", Bytes: private}, certFile: {Type: "CERTIFICATE", Bytes: der}} {
			if err := os.WriteFile(file+".new", pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
			// File systems store times in coarse steps.
			at := time.Now().Add(time.Duration(serial) * time.Hour)
			if err := os.Chtimes(file+".new", at, at); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		if !trusted.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) {
			t.Fatal("no certificate")
		}
	}
	replace(1)
	var log bytes.Buffer
	d := daemontest.Start(t, testdaemon.Config{
		State: filepath.Join(dir, "state"), Args: []string{"--tls-cert", certFile, "--tls-key", keyFile},
		TLS: &tls.Config{RootCAs: trusted}, Log: &log,
	})
	for serial, protocol := range []string{1: "HTTP/1.1", 2: "HTTP/2.0"} {
		if serial == 0 {
			continue
		}
		if serial > 1 {
			replace(int64(serial))
		}
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(serial == 1)
		tr.Protocols.SetHTTP2(serial == 2)
		resp, err := (&http.Client{Transport: tr}).Get(d.URL("/healthz"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		tr.CloseIdleConnections()
		if err != nil || resp.StatusCode != 200 || resp.Proto != protocol || resp.TLS.PeerCertificates[0].SerialNumber.Int64() != int64(serial) {
			t.Errorf("%s %s, certificate %v, %v", resp.Proto, resp.Status, resp.TLS.PeerCertificates[0].SerialNumber, err)
		}
	}
	daemontest.Stop(t, d)
	if !bytes.Contains(log.Bytes(), []byte("https://"+d.Addr())) {
		t.Errorf("the log does not say https:\n%s", &log)
	}
}
