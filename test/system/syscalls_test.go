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

	"github.com/fre-engine/fre/internal/daemon"
	"github.com/fre-engine/fre/internal/daemon/daemontest"
)

// traced matches a call in strace's output that has moved bytes: 12 sendfile(8, 9, [0]
// => [524288], 524288) = 524288, or the end of one that others came between.
var traced = regexp.MustCompile(`(?m)^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>).*\) += (\d+)$`)

// TestBodiesAreMovedByTheKernel: the engine touches the heads of an answer that is a
// file, and the kernel moves its body: of all the calls that the engine makes for 1 MiB,
// none but sendfile moves more than a head's worth.
func TestBodiesAreMovedByTheKernel(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatalf("%v: run scripts/deps.sh test", err)
	}
	const size, head = 1 << 20, 8 << 10
	d := daemontest.Serve(t, daemon.Function{Name: "fn"})
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	get := func() {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL("/function/fn/large"), nil)
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
	get() // the instance's start is no part of it

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
	get()
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, said)
	_ = cmd.Wait() // it ends by the signal
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	sent, calls := 0, 0
	for _, m := range traced.FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(m[2]))
		if err != nil {
			t.Fatal(err)
		}
		calls++
		switch {
		case string(m[1]) == "sendfile":
			sent += n
		case n > head:
			t.Errorf("%s moved %d bytes through the engine", m[1], n)
		}
	}
	if sent != size || calls < 3 { // the head of the request, of the answer, and the file
		t.Errorf("sendfile moved %d bytes in %d calls of all kinds, want %d", sent, calls, size)
	}
	if t.Failed() {
		t.Logf("trace:\n%s", text)
	}
}
