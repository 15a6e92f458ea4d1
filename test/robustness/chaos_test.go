package robustness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/template"
)

const (
	// atMostChaos bounds the slowdown of a warm call beside misbehaviour on the data path, as
	// atMost does.
	atMostChaos = 3.0
	roundsChaos = 20 // the most measured rounds beside each misbehaviour
	// drip is the time between two bytes of a slow client.
	drip = 100 * time.Millisecond
	// pace is the time between two attempts of a client.
	pace = 500 * time.Millisecond
)

// exchange is a client's whole conversation with the gateway. ctx bounds an exchange that would not
// end by itself. A wrong answer is an error.
type exchange func(ctx context.Context, w *world) error

// misbehaviours are of clients and functions. A client for each exchange repeats the exchange again
// and again.
var misbehaviours = []struct {
	name  string
	tries []exchange
}{
	{"slow readers", []exchange{
		readSlowly("/function/fn.chaos/stream?4194304", 4<<20), // PIPE
		readSlowly("/function/fn.chaos/file/sealed?4194304", 4<<20),
		readSlowly("/function/fn.chaos/file/unsealed?1048576", 1<<20),
		readSlowly("/function/fn.chaos/file/named?1048576", 1<<20),
		readSlowly("/function/printer.chaos/print?2097152", 2<<20),
		takeNothing("/function/brief.chaos/stream?16777216"),
	}},
	{"slow writers", []exchange{
		writeSlowly("/function/fn.chaos/"),
		refusedSlowly("POST /function/brief.chaos/ HTTP/1.1\r\nHost: fre\r\nContent-Length: 100000\r\n\r\n", "x", http.StatusGatewayTimeout),
		refusedSlowly("POST /function/native.chaos/copy HTTP/1.1\r\nHost: fre\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", http.StatusGatewayTimeout),
		refusedSlowly("", "GET /function/fn.chaos/ HTTP/1.1\r\nHost: fre\r\nX-Long: "+strings.Repeat("x", 1000), http.StatusRequestTimeout),
	}},
	{"clients that vanish", []exchange{
		vanish("GET /function/fn.chaos/stream?8388608 HTTP/1.1\r\nHost: fre\r\n\r\n", "", reset),
		vanish("GET /function/fn.chaos/file/sealed?4194304 HTTP/1.1\r\nHost: fre\r\n\r\n", "", reset),
		vanish("GET /function/printer.chaos/print?4194304 HTTP/1.1\r\nHost: fre\r\n\r\n", "", hangUp),
		vanish("GET /function/fn.chaos/stream?8388608 HTTP/1.1\r\nHost: fre\r\n\r\n", "", hangUp),
		vanish("GET /function/fn.chaos/stream?1048576 HTTP/1.1\r\nHost: fre\r\n\r\n", "", halfClose),
		vanish("POST /function/fn.chaos/ HTTP/1.1\r\nHost: fre\r\nContent-Length: 1000000\r\n\r\n", strings.Repeat("x", 300_000), reset),
		vanish("POST /function/fn.chaos/ HTTP/1.1\r\nHost: fre\r\nContent-Length: 1000000\r\n\r\n", strings.Repeat("x", 300_000), hangUp),
		vanish("POST /function/native.chaos/copy HTTP/1.1\r\nHost: fre\r\nContent-Length: 1000000\r\n\r\n", strings.Repeat("x", 300_000), halfClose),
	}},
	{"streams that are reset", []exchange{
		resetStream("/function/fn.chaos/stream?8388608", 0),
		resetStream("/function/fn.chaos/file/sealed?4194304", 0),
		resetStream("/function/printer.chaos/print?4194304", 0),
		resetStream("/function/fn.chaos/", 100_000),
	}},
	{"functions that die", []exchange{
		broken("/function/fn.chaos/end/exit?300000"),
		broken("/function/fn.chaos/end/crash?1000000"),
		broken("/function/fn.chaos/end/memory?300000"),
		broken("/function/fn.chaos/end/frame?300000"),
		broken("/function/fn.chaos/end/error?300000"),
		broken("/function/brief.chaos/end/hang?300000"),
		brokenStream("/function/fn.chaos/end/exit?300000"),
		brokenStream("/function/brief.chaos/end/hang?300000"),
	}},
	{"functions that lie", []exchange{
		whole("/function/fn.chaos/lie/7?1024", 1024),
		whole("/function/fn.chaos/lie/99999?1024", 1024),
		whole("/function/fn.chaos/lie/7?131072", 128<<10), // in a file
		status("/function/fn.chaos/file/longer", http.StatusBadGateway),
		status("/function/fn.chaos/file/overflow", http.StatusBadGateway),
		truncated,
	}},
	{"files that are none", []exchange{
		status("/function/fn.chaos/file/pipe", http.StatusBadGateway),
		status("/function/fn.chaos/file/socket", http.StatusBadGateway),
		status("/function/fn.chaos/file/directory", http.StatusBadGateway),
		status("/function/fn.chaos/file/device", http.StatusBadGateway),
		status("/function/fn.chaos/file/fifo", http.StatusBadGateway),
		status("/function/fn.chaos/file/two", http.StatusBadGateway),
	}},
	{"datagrams", []exchange{flood}},
}

// Misbehaving clients and functions on the data path harm nobody: each exchange ends correctly, a
// neighbour answers all the time and at most three times slower, and the engine keeps no leftovers.
func TestChaos(t *testing.T) {
	w := newWorld(t, serveChaos(t))
	w.measure(t) // warms up
	had := w.holdings(t)
	first, strange := w.measureQuiet(t)
	quiet := []times{first}
	for _, m := range misbehaviours {
		t.Run(m.name, func(t *testing.T) {
			beside := series{quiet: quiet}
			stop := w.misbehave(t, m.tries)
			for n := range roundsChaos {
				if n >= 2 && beside.within(atMostChaos, 0) {
					break
				}
				beside.attacked = append(beside.attacked, w.measure(t))
			}
			stop()
			w.untilQuiet(t, had)
			after, busy := w.measureQuiet(t)
			quiet = append(quiet, after)
			strange = max(strange, busy)
			beside.quiet = quiet
			most := atMostChaos
			if strange > strangers {
				most = atMostBusy
			}
			beside.check(t, most)
		})
	}
}

// serveChaos runs an engine with the functions of misbehaviours, a neighbour called victim, and
// more.
func serveChaos(t *testing.T, more ...testdaemon.Function) *testdaemon.Daemon {
	t.Helper()
	brief, native := image.Config{}, image.Config{Protocol: image.ProtocolStdio}
	printer := native // without a time limit of its own, because the machine may be busy
	brief.Resources.Timeout, native.Resources.Timeout = time.Second, 2*time.Second
	fn, liar := image.Config{}, image.Config{}
	for _, c := range []*image.Config{&fn, &liar, &brief, &native, &printer} {
		c.Tenant, c.Instances.Max, c.Instances.Idle = "chaos", 4, time.Second
		c.Resources.CPUMillis = 250
	}
	liar.Instances.Max = 1 // so that the same instance gets the second request
	return daemontest.Serve(t, append(more,
		testdaemon.Function{Name: "victim", Config: image.Config{Instances: template.Instances{Idle: time.Hour}}},
		testdaemon.Function{Name: "fn", Config: fn},
		testdaemon.Function{Name: "liar", Config: liar},
		testdaemon.Function{Name: "brief", Config: brief},
		testdaemon.Function{Name: "native", Config: native},
		testdaemon.Function{Name: "printer", Config: printer},
	)...)
}

// misbehave repeats each exchange with a client of its own. stop ends the exchanges and waits for
// the clients.
func (w *world) misbehave(t *testing.T, tries []exchange) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	counts := make([]int, len(tries))
	for i, try := range tries {
		clients.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for ctx.Err() == nil {
				if err := try(ctx, w); err != nil {
					t.Errorf("exchange %d: %v", i, err)
					return
				}
				counts[i]++
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
		t.Logf("exchanges: %v", counts)
	}
}

// dial connects to the gateway. A small connection buffers little of an unread answer. The deadline
// bounds everything on the connection.
func (w *world) dial(small bool) (*net.TCPConn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if small {
			err = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
		}
		return err
	}}
	conn, err := d.Dial("tcp", w.d.Addr())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), conn.SetDeadline(time.Now().Add(within))
}

// get asks for a path on a new connection; closing the body closes the connection.
func (w *world) get(path string, small bool) (*http.Response, error) {
	conn, err := w.dial(small)
	if err != nil {
		return nil, err
	}
	if _, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: fre\r\n\r\n", path); err == nil {
		var resp *http.Response
		if resp, err = http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			resp.Body = struct {
				io.Reader
				io.Closer
			}{resp.Body, conn}
			return resp, nil
		}
	}
	_ = conn.Close()
	return nil, fmt.Errorf("GET %s: %w", path, err)
}

// pattern is repeated in the functions' bodies.
const pattern = "0123456789abcdef"

// checkBody reads a body that begins at offset at of the pattern.
func checkBody(body io.Reader, at int) (n int, err error) {
	buf := make([]byte, 64<<10)
	want := strings.Repeat(pattern, len(buf)/len(pattern)+1)
	for {
		m, err := body.Read(buf)
		if from := (at + n) % len(pattern); string(buf[:m]) != want[from:from+m] {
			return n, fmt.Errorf("bytes %d to %d are not those that were sent", at+n, at+n+m)
		}
		n += m
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// readSlowly reads byte by byte until ctx ends, then the rest.
func readSlowly(path string, size int) exchange {
	return func(ctx context.Context, w *world) error {
		resp, err := w.get(path, true)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		n := 0
		tick := time.NewTicker(drip)
		defer tick.Stop()
		for one := make([]byte, 1); ctx.Err() == nil; n++ {
			if _, err := io.ReadFull(resp.Body, one); err != nil || one[0] != pattern[n%len(pattern)] {
				return fmt.Errorf("%s: byte %d is %q: %w", path, n, one, err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		m, err := checkBody(resp.Body, n)
		if n+m != size || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s, %d bytes and %d, want %d: %w", path, resp.Status, n, m, size, err)
		}
		return nil
	}
}

// takeNothing reads no byte until the function's time limit, a second, is over. The answer must
// break off.
func takeNothing(path string) exchange {
	return func(_ context.Context, w *world) error {
		resp, err := w.get(path, true)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		<-time.After(2 * time.Second)
		if _, err := checkBody(resp.Body, 0); err == nil {
			return fmt.Errorf("%s: whole, though its time was over", path)
		}
		return nil
	}
}

// writeSlowly sends a body byte by byte until ctx ends, then the rest, and requires the same body
// back.
func writeSlowly(path string) exchange {
	return func(ctx context.Context, w *world) error {
		conn, err := w.dial(false)
		if err != nil {
			return err
		}
		defer conn.Close()
		const size = 64 << 10
		body := strings.Repeat(pattern, size/len(pattern))
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: fre\r\nContent-Length: %d\r\n\r\n", path, size); err != nil {
			return err
		}
		tick := time.NewTicker(drip)
		defer tick.Stop()
		n := 0
		for ; ctx.Err() == nil && n < size; n++ {
			if _, err := io.WriteString(conn, body[n:n+1]); err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		if _, err := io.WriteString(conn, body[n:]); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if m, err := checkBody(resp.Body, 0); err != nil || m != size || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s, %d bytes, want %d: %w", path, resp.Status, m, size, err)
		}
		return nil
	}
}

// refusedSlowly sends a head, then piece after piece, until an answer with the given status
// arrives.
func refusedSlowly(head, more string, status int) exchange {
	return func(_ context.Context, w *world) error {
		conn, err := w.dial(false)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, head); err != nil {
			return err
		}
		type answer struct {
			resp *http.Response
			err  error
		}
		answered := make(chan answer, 1)
		go func() {
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil {
				err = resp.Body.Close()
			}
			answered <- answer{resp, err}
		}()
		tick := time.NewTicker(drip)
		defer tick.Stop()
		for n := 0; ; n++ {
			piece := more
			if head == "" {
				piece = more[n : n+1]
			}
			_, _ = io.WriteString(conn, piece) // fails after the refusal, with the answer on the way
			select {
			case a := <-answered:
				if a.err != nil || a.resp.StatusCode != status {
					return fmt.Errorf("%.40q, slowly: %+v, %w; want %d", head+more, a.resp, a.err, status)
				}
				return nil
			case <-tick.C:
			}
		}
	}
}

// reset ends a connection by RST. hangUp ends it by FIN if all input was read. halfClose shuts down
// the sending side and waits for the end.
func reset(conn *net.TCPConn) error  { return errors.Join(conn.SetLinger(0), conn.Close()) }
func hangUp(conn *net.TCPConn) error { return conn.Close() }
func halfClose(conn *net.TCPConn) error {
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, unix.ECONNRESET) { // the server left input unread
		err = nil
	}
	return errors.Join(err, conn.Close())
}

// vanish sends a request with a part of the body, or reads a part of the answer to a request
// without body, and disconnects.
func vanish(head, body string, by func(*net.TCPConn) error) exchange {
	return func(_ context.Context, w *world) error {
		conn, err := w.dial(false)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, head+body); err != nil {
			return err
		}
		if body == "" {
			if _, err := io.ReadFull(conn, make([]byte, 100_000)); err != nil {
				return fmt.Errorf("%.40q: %w", head, err)
			}
		}
		return by(conn)
	}
}

// overHTTP2 calls ask with an HTTP/2 client on a connection of its own.
func (w *world) overHTTP2(ask func(*http.Client) error) error {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	return ask(&http.Client{Transport: tr, Timeout: within})
}

// resetStream resets an HTTP/2 request: after sent bytes of the body, or in the middle of the
// answer if sent is 0. The next request on the connection must get an answer.
func resetStream(path string, sent int) exchange {
	return func(_ context.Context, w *world) error {
		return w.overHTTP2(func(client *http.Client) error {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.d.URL(path), nil)
			if err != nil {
				return err
			}
			if sent > 0 {
				r, body := io.Pipe()
				req.Body = r
				defer body.Close()
				go func() {
					_, _ = body.Write(bytes.Repeat([]byte("x"), sent))
					cancel()
				}()
			}
			if resp, err := client.Do(req); err == nil {
				start := make([]byte, 100_000)
				n, err := io.ReadFull(resp.Body, start)
				cancel()
				_ = resp.Body.Close()
				if err != nil {
					return fmt.Errorf("%s: %s, %.300q, %w", path, resp.Status, start[:n], err)
				}
			} else if !errors.Is(err, context.Canceled) {
				return err
			}
			a, err := testdaemon.Event{Method: http.MethodPost, Body: "next"}.Call(context.Background(), client, w.d.Addr(), "victim")
			if err != nil || string(a.Body) != "next" {
				return fmt.Errorf("after a reset of %s: %+v, %w", path, a, err)
			}
			return nil
		})
	}
}

// broken requires an answer that begins well and breaks off.
func broken(path string) exchange {
	return func(_ context.Context, w *world) error {
		resp, err := w.get(path, false)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return wantBroken(path, resp)
	}
}

// brokenStream is broken over HTTP/2.
func brokenStream(path string) exchange {
	return func(_ context.Context, w *world) error {
		return w.overHTTP2(func(client *http.Client) error {
			resp, err := client.Get(w.d.URL(path))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			return wantBroken(path, resp)
		})
	}
}

func wantBroken(path string, resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusGatewayTimeout, http.StatusServiceUnavailable: // other events took all the time of the function
		_, err := io.Copy(io.Discard, resp.Body)
		return err
	}
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s, %q, %w; want it broken off", path, resp.Status, text, err)
	}
	n, err := checkBody(resp.Body, 0)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %s, %d bytes, %w; want it broken off", path, resp.Status, n, err)
	}
	return nil
}

// whole requires an answer of size bytes.
func whole(path string, size int) exchange {
	return func(_ context.Context, w *world) error {
		resp, err := w.get(path, false)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if n, err := checkBody(resp.Body, 0); err != nil || n != size || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s, %d bytes, %w; want %d", path, resp.Status, n, err, size)
		}
		return nil
	}
}

// status requires an answer with the given status.
func status(path string, want int) exchange {
	return func(_ context.Context, w *world) error {
		resp, err := w.get(path, false)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != want {
			return fmt.Errorf("%s: %s, %q, %w; want %d", path, resp.Status, text, err, want)
		}
		return nil
	}
}

// truncated requires an answer to break off whose file is truncated during the transfer.
func truncated(_ context.Context, w *world) error {
	resp, err := w.get("/function/liar.chaos/file/truncated?8388608", true) // more than the sockets buffer
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	done, err := w.get("/function/liar.chaos/truncate", false)
	if err != nil {
		return err
	}
	defer done.Body.Close()
	if done.StatusCode != http.StatusNoContent { // the instance was idle for too long, or another client was first
		_, _ = io.Copy(io.Discard, resp.Body)
		return nil
	}
	return wantBroken("truncated", resp)
}

// flood sends datagrams over the loopback interface at full speed to a socket without a reader.
func flood(ctx context.Context, w *world) error {
	to, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer to.Close()
	cmd := exec.Command(w.program, "datagrams", to.LocalAddr().String())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = stdin.Close() })
	defer stop()
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || n < 1000 {
		return fmt.Errorf("%q datagrams: this proves nothing: %w", out, err)
	}
	return nil
}
