package system_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/template"
)

// traced matches a call in strace's output that has moved bytes: 12 sendfile(8, 9, [0]
// => [524288], 524288) = 524288, or the end of one that others came between.
var traced = regexp.MustCompile(`(?m)^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>).*\) += (\d+)$`)

// TestBodiesAreMovedByTheKernel: the engine touches the head of an answer that is a
// file, and the kernel moves its body: of all the calls that the engine makes for 1 MiB,
// none but sendfile moves more than a head's worth. Of an answer that a function writes to
// its client itself, none but the head comes by.
func TestBodiesAreMovedByTheKernel(t *testing.T) {
	const size = 1 << 20
	config := filepath.Join(t.TempDir(), "engine.yaml")
	if err := os.WriteFile(config, []byte("network: {lend_connections: [default/lent]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := daemontest.ServeWith(t, testdaemon.Config{Args: []string{"--config", config}},
		testdaemon.Function{Name: "fn"},
		testdaemon.Function{Name: "lent", Config: image.Config{Network: template.Network{Mode: template.NetworkNone, LendConnection: true}}})
	t.Run("file", func(t *testing.T) {
		moved, text := traceAnswer(t, d, "/function/fn/large", size)
		for call, n := range moved {
			if call == "sendfile" && n.sum != size || call != "sendfile" && n.most > 8<<10 {
				t.Errorf("%s moved %d bytes, up to %d at once, of an answer of %d", call, n.sum, n.most, size)
			}
		}
		if moved["sendfile"].sum != size {
			t.Errorf("sendfile moved %d bytes, want %d:\n%s", moved["sendfile"].sum, size, text)
		}
	})
	t.Run("lent", func(t *testing.T) {
		all, text := traceAnswer(t, d, "/function/lent/stream?1048576", size)
		sum := 0
		for _, n := range all {
			sum += n.sum
		}
		if most := 16 << 10; sum > most || sum < 200 { // what is said of it, the head among that
			t.Errorf("the engine moved %d bytes of an answer of %d, at most %d are its part:\n%s", sum, size, most, text)
		}
	})
}

// moved is what the calls of one name have moved, in bytes.
type moved struct{ sum, most int }

// traceAnswer returns which system calls of the engine moved how much while it gave the
// answer of that size, and strace's own words.
func traceAnswer(t *testing.T, d *testdaemon.Daemon, path string, size int64) (all map[string]moved, text []byte) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatalf("%v: run scripts/deps.sh test", err)
	}
	tr := &http.Transport{DisableCompression: true, MaxConnsPerHost: 1}
	defer tr.CloseIdleConnections()
	get := func(path string, size int64) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL(path), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != size || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s, %d bytes, %v", resp.Status, n, err)
		}
	}
	get(path, size) // the instance's start is no part of it

	out := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-s", "0", "-o", out, "-p", fmt.Sprint(d.PID()), "-e",
		"trace=read,write,readv,writev,pread64,pwrite64,preadv,pwritev,sendmsg,sendto,recvmsg,recvfrom,sendfile,splice,tee,vmsplice,copy_file_range")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for attached := false; !attached; { // one line tells of all threads
		if !lines.Scan() {
			t.Fatalf("strace did not attach: %v", cmd.Wait())
		}
		attached = bytes.Contains(lines.Bytes(), []byte("attached"))
	}
	get(path, size)
	get("/healthz", 3) // on the same connection: what it did for the one before has returned, and is told of
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, said)
	_ = cmd.Wait() // it ends by the signal
	if text, err = os.ReadFile(out); err != nil {
		t.Fatal(err)
	}
	all = map[string]moved{}
	for _, m := range traced.FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(m[2]))
		if err != nil {
			t.Fatal(err)
		}
		call := all[string(m[1])]
		all[string(m[1])] = moved{call.sum + n, max(call.most, n)}
	}
	return all, text
}
