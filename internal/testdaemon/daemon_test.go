package testdaemon_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/testdaemon"
)

func program(t *testing.T, body string) testdaemon.Config {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "fre")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return testdaemon.Config{Bin: bin, State: filepath.Join(t.TempDir(), "state")}
}

func TestStartReportsTheEnd(t *testing.T) {
	_, err := testdaemon.Start(t.Context(), program(t, `echo "no room at the inn" >&2; exit 3`))
	if !errors.Is(err, testdaemon.ErrExited) || !strings.Contains(err.Error(), "no room at the inn") {
		t.Errorf("got %v, want ErrExited with what the program said", err)
	}
}

func TestStartGivesUpWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := testdaemon.Start(ctx, program(t, "exec sleep 600"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
}

func TestCommand(t *testing.T) {
	cfg := program(t, `echo "out $*"; echo "said $1" >&2; exit "$2"`)
	if got, err := testdaemon.Command(t.Context(), cfg.Bin, "a", "0"); err != nil || got != "out a 0\n" {
		t.Errorf("got %q and error %v, want what the program printed", got, err)
	}
	_, err := testdaemon.Command(t.Context(), cfg.Bin, "b", "4")
	var failed *testdaemon.CommandError
	if !errors.As(err, &failed) || failed.Code != 4 || failed.Stderr != "said b\n" {
		t.Errorf("got %#v, want a CommandError of status 4 that holds standard error", err)
	}
}

// TestFreeAddress: no address comes twice. The port lies outside the kernel's range of ephemeral
// ports, unless this range covers nearly all ports.
func TestFreeAddress(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	var low, high int
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		t.Fatal(err)
	}
	room := max(low-10_000, 65_535-high) > 1000
	seen := map[string]bool{}
	for range 500 {
		address, err := testdaemon.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(text)
		if err != nil || seen[address] || room && port >= low && port <= high {
			t.Errorf("%s (%v): it came before, or lies in the kernel's range from %d to %d", address, err, low, high)
		}
		seen[address] = true
	}
}
