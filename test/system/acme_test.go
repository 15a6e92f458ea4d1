package system

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// resolveAll answers every question for an address with 127.0.0.1, until the test ends.
func resolveAll(t *testing.T) (address string) {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
				}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return conn.LocalAddr().String()
}

// pebble runs Let's Encrypt's small ACME server (RFC 8555), which validates at the given port. It
// returns the URL of the server's directory and the root certificate.
func pebble(t *testing.T, dir string, port int, certFile, keyFile string, trusted *x509.CertPool) (directory string, root *x509.CertPool) {
	t.Helper()
	listen, management := freeAddress(t), freeAddress(t)
	config, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": listen, "managementListenAddress": management, "certificate": certFile, "privateKey": keyFile,
		"httpPort": 1, "tlsPort": port, "ocspResponderURL": "", "externalAccountBindingRequired": false,
		"profiles": map[string]any{"default": map[string]any{"description": "for tests", "validityPeriod": 3600}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "pebble.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), fretest.Tool(t, "pebble"), "-config", file, "-dnsserver", resolveAll(t))
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("pebble:\n%s", log.String())
		}
	})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(t.Context(), deliveriesWithin)
	defer cancel()
	root = x509.NewCertPool()
	err = testdaemon.Until(ctx, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+management+"/roots/0", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		pem, err := io.ReadAll(resp.Body)
		if err == nil && !root.AppendCertsFromPEM(pem) {
			err = errors.New("no root yet")
		}
		return err
	})
	if err != nil {
		t.Fatalf("pebble: %v\n%s", err, log.String())
	}
	return "https://" + listen + "/dir", root
}

// The gateway and the control API share a certificate from an ACME server, which validates at the
// gateway's own port. The certificate survives a restart of the engine. Host names outside the
// configuration get no certificate.
func TestACME(t *testing.T) {
	dir := daemontest.Dir(t)
	r := &tenantsRig{t: t, dir: dir, cert: filepath.Join(dir, "pebble.pem")}
	trusted := r.certificate(filepath.Join(dir, "pebble-key.pem"))
	t.Setenv("SSL_CERT_FILE", r.cert)
	gateway, api := freeAddress(t), freeAddress(t)
	_, port, err := net.SplitHostPort(gateway)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	directory, root := pebble(t, dir, number, r.cert, filepath.Join(dir, "pebble-key.pem"), trusted)
	config := filepath.Join(dir, "fre.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "tls:\n  acme:\n    hosts: [fre.example]\n    email: ops@fre.example\n    directory: %s\n", directory), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testdaemon.Config{
		State: filepath.Join(dir, "state"), Listen: gateway, Args: []string{"--config", config, "--api-listen", api},
		TLS: &tls.Config{RootCAs: root, ServerName: "fre.example"},
	}
	serial := func(address, name string) (string, error) {
		d := tls.Dialer{Config: &tls.Config{RootCAs: root, ServerName: name}}
		conn, err := d.DialContext(t.Context(), "tcp", address)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
	}
	d := daemontest.Start(t, cfg) // the start waits for an answer over TLS with a certificate of root
	first, err := serial(gateway, "fre.example")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := serial(api, "fre.example"); err != nil || got != first {
		t.Errorf("the control API's certificate is %s, %v, want the gateway's %s", got, err, first)
	}
	if got, err := serial(gateway, "evil.example"); err == nil {
		t.Errorf("another name has a certificate: %s", got)
	}
	if info, err := os.Stat(filepath.Join(d.State(), "acme")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of keys: %v, %v, want mode 0700", info, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deliveriesWithin)
	defer cancel()
	if err := testdaemon.Until(ctx, func() error { // the engine uses a certificate before the file is written
		_, err := os.Stat(filepath.Join(d.State(), "acme", "fre.example"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	d.Kill()
	again := daemontest.Start(t, cfg)
	defer daemontest.Stop(t, again)
	if got, err := serial(gateway, "fre.example"); err != nil || got != first {
		t.Errorf("after another start the certificate is %s, %v, want the one before, %s", got, err, first)
	}
}
