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

// traced matches a system call with a byte count in strace's output: 12 sendfile(8, 9, [0] =>
// [524288], 524288) = 524288, or the second half of an interrupted line.
var traced = regexp.MustCompile(`(?m)^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>).*\) += (\d+)$`)

// The kernel moves the body of an answer that is a file, and the engine only writes the head: of
// all system calls for 1 MiB, only sendfile moves more than a head. If a function answers on the
// client's own connection, the engine moves little more than the head.
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
		if most := 16 << 10; sum > most || sum < 200 { // the head and messages about the answer
			t.Errorf("the engine moved %d bytes of an answer of %d, at most %d are its part:\n%s", sum, size, most, text)
		}
	})
}

// moved is the number of bytes that all calls of one name moved, and the largest single count.
type moved struct{ sum, most int }

// traceAnswer returns the bytes that each system call of the engine moved during an answer of the
// given size, and strace's output.
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
	get(path, size) // the trace leaves out the start of the instance

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
	for attached := false; !attached; { // one line reports all threads
		if !lines.Scan() {
			t.Fatalf("strace did not attach: %v", cmd.Wait())
		}
		attached = bytes.Contains(lines.Bytes(), []byte("attached"))
	}
	get(path, size)
	get("/healthz", 3) // on the same connection, so the calls for the first answer are finished and in the trace
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, said)
	_ = cmd.Wait() // the signal ends strace
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
