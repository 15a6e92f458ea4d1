package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/daemon"
	"github.com/fre-engine/fre/internal/fretest"
)

// fre registry serve answers requests, locks its directory, collects garbage, and ends with its
// context.
func TestRegistryServe(t *testing.T) {
	_, stopSignals := signal.NotifyContext(t.Context(), os.Interrupt) // the first call starts a goroutine that stays
	stopSignals()
	fretest.CheckLeaks(t)
	dir := t.TempDir()
	cfg := daemon.Registry{Dir: filepath.Join(dir, "registry"), Listen: "unix:" + filepath.Join(dir, "socket"), Interval: time.Hour}
	ctx, stop := context.WithCancel(t.Context())
	said, says := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := cfg.Serve(ctx, func() {}, slog.New(slog.NewTextHandler(says, nil)))
		_ = says.Close()
		done <- err
	}()
	line := make([]byte, 4096)
	n, err := said.Read(line)
	if err != nil || !strings.Contains(string(line[:n]), `msg="registry ready"`) {
		t.Fatalf("it said %q, %v", line[:n], err)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()

	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "socket"))
	}}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://registry/v2/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("GET /v2/: %s", resp.Status)
	}

	gc := func() (string, int) {
		var out bytes.Buffer
		code := execute([]string{"registry", "gc", "--dir", cfg.Dir, "--format", "{{.Bytes}}"}, strings.NewReader(""), &out, &out)
		return out.String(), code
	}
	if out, code := gc(); code != exitError || !strings.Contains(out, "in use") || !strings.Contains(out, "--gc-interval") {
		t.Errorf("gc beside the registry: exit code %d, %q", code, out)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
	if out, code := gc(); code != 0 || out != "0\n" {
		t.Errorf("gc: exit code %d, %q", code, out)
	}
}
