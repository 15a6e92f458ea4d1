package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel"
)

// function answers events. With a channel, answer handles each event by its path. Without a channel
// the process handles one event: it runs the command named by the event's path, with the arguments
// in the query: /fill?/tmp/x.
func function() error {
	if os.Getenv("FRE_CHANNEL") == "" {
		var args []string
		if query := os.Getenv("FRE_QUERY"); query != "" {
			args = strings.Split(query, "&")
		}
		return run(strings.Trim(os.Getenv("FRE_PATH"), "/"), args)
	}
	conn, err := channel.Inherited()
	if err != nil {
		return err
	}
	ready := channel.Ready{Protocol: 1, Runtime: "go", Concurrency: 1}
	var events uint64 // counted as the engine counts on this channel: one event at a time
	return channel.Serve(context.Background(), conn, ready, func(_ context.Context, ev *channel.Event) (*channel.Answer, error) {
		events++
		return answer(conn, events, ev)
	})
}

// pattern is the repeated content of generated bodies.
const pattern = "0123456789abcdef"

// kept holds the files of "truncated" and "named-open" answers, open until /truncate truncates
// them.
var kept []*os.File

// answer answers one event. /rights sends unrequested files, /file/KIND sends a file as the body,
// /stream sends a body of unknown length, /end/HOW sends a body that ends badly, /lie sends a body
// that contradicts the Content-Length header, /large sends 1 MiB at once. The query is the body's
// length; the default for /stream is 1 MiB. Every other path echoes the request body, and /say also
// prints the body.
func answer(conn *net.UnixConn, id uint64, ev *channel.Event) (*channel.Answer, error) {
	size := 0
	if ev.Query != "" {
		var err error
		if size, err = strconv.Atoi(ev.Query); err != nil {
			return nil, err
		}
	}
	command, how, _ := strings.Cut(strings.TrimPrefix(ev.Path, "/"), "/")
	switch command {
	case "rights":
		n, err := sendRights(conn)
		return &channel.Answer{Status: 200, Body: strings.NewReader(strconv.Itoa(n))}, err
	case "file":
		content := "what a function gives as its answer"
		if size > 0 {
			content = strings.Repeat(pattern, size/len(pattern))
		}
		if err := sendFile(conn, id, how, content); err != nil {
			return nil, err
		}
		select {} // the file is the answer; or the engine ends the process
	case "truncate":
		if len(kept) == 0 {
			return nil, errors.New("there is no such answer")
		}
		for _, f := range kept {
			if err := f.Truncate(0); err != nil {
				return nil, err
			}
		}
		kept = nil
		return nil, nil
	case "stream":
		if size == 0 {
			size = 1 << 20
		}
		return &channel.Answer{Body: &stream{size: size, end: func() error { return io.EOF }}}, nil
	case "end":
		return &channel.Answer{Body: &stream{size: size, end: badEnd(conn, how)}}, nil
	case "lie":
		return &channel.Answer{Headers: [][2]string{{"Content-Length", how}}, Body: strings.NewReader(strings.Repeat(pattern, size/len(pattern)))}, nil
	case "large": // sent as a file if the engine accepts files
		return &channel.Answer{Status: 200, Body: strings.NewReader(strings.Repeat(pattern, 1<<16))}, nil
	}
	body, err := io.ReadAll(ev.Body)
	if command == "say" {
		fmt.Println("out", string(body))
		fmt.Fprintln(os.Stderr, "err", string(body))
	}
	return &channel.Answer{Status: 200, Body: strings.NewReader(string(body))}, err
}

// stream yields size bytes of the pattern, and then the result of end.
type stream struct {
	size, at int
	end      func() error
}

func (s *stream) Read(p []byte) (int, error) {
	if s.at == s.size {
		return 0, s.end()
	}
	n := 0
	for want := min(len(p), s.size-s.at); n < want; {
		n += copy(p[n:want], pattern[(s.at+n)%len(pattern):])
	}
	s.at += n
	return n, nil
}

// badEnd returns a way to stop in the middle of an answer. SIGKILL is missing: the function is
// process 1 and cannot kill itself.
func badEnd(conn *net.UnixConn, how string) func() error {
	return func() error {
		switch how {
		case "exit":
			os.Exit(3)
		case "crash":
			return run("crash", nil)
		case "memory":
			return eat("1000000000")
		case "frame":
			_, err := conn.Write(bytes.Repeat([]byte{0xff}, 64))
			forever()
			return err
		case "hang":
			forever()
		}
		return errors.New("broken off")
	}
}

// sendFile answers the event with a file of the given kind, in a hand-made FD or FILE frame
// (docs/protocol.md).
func sendFile(conn *net.UnixConn, id uint64, kind, content string) error {
	f, err := os.CreateTemp("/tmp", "answer")
	if err == nil {
		_, err = f.WriteString(content)
	}
	if err != nil {
		return err
	}
	if kind == "truncated" || kind == "named-open" {
		kept = append(kept, f)
	} else {
		defer func() { _ = f.Close() }()
	}
	memfd, err := unix.MemfdCreate("wrong", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	defer unix.Close(memfd)
	if _, err = unix.Write(memfd, []byte(content)); err == nil {
		for range 20 { // EBUSY after 150 ms if the kernel uses a page
			_, err = unix.FcntlInt(uintptr(memfd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
			if !errors.Is(err, unix.EBUSY) {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	fds, frame, where := []int{memfd}, byte(0x20), fmt.Sprintf(`{"offset":0,"length":%d}`, len(content))
	named := func(name string) {
		fds, frame = nil, 0x21
		where = fmt.Sprintf(`{"offset":0,"length":%d,"name":%q}`, len(content), name)
	}
	open := func(name string, flags int) {
		fds[0], err = unix.Open(name, flags|unix.O_CLOEXEC, 0)
	}
	name := f.Name()
	defer func() {
		if frame == 0x20 {
			_ = os.Remove(name)
		}
	}()
	switch kind {
	case "sealed":
	case "unsealed", "truncated":
		fds[0] = int(f.Fd())
	case "named":
		err = f.Close()
		named(filepath.Base(name))
	case "named-open":
		named(filepath.Base(name))
	case "pipe":
		var p [2]int
		err = unix.Pipe2(p[:], unix.O_CLOEXEC)
		fds[0] = p[0]
	case "socket":
		fds[0], err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	case "directory":
		open("/", unix.O_RDONLY)
	case "device":
		open("/dev/zero", unix.O_RDONLY)
	case "path":
		open(name, unix.O_PATH)
	case "write-only":
		open(name, unix.O_WRONLY)
	case "proc":
		open("/proc/self/environ", unix.O_RDONLY)
	case "two":
		fds = append(fds, memfd)
	case "none":
		fds = nil
	case "longer":
		where = fmt.Sprintf(`{"offset":1,"length":%d}`, len(content))
	case "overflow":
		where = `{"offset":9223372036854775807,"length":9223372036854775807}`
	case "outside":
		named("../proc/self/environ")
	case "link":
		err = errors.Join(os.Remove(name), os.Symlink("/proc/self/environ", name))
		named(filepath.Base(name))
	case "fifo":
		err = errors.Join(os.Remove(name), unix.Mkfifo(name, 0o600))
		named(filepath.Base(name))
	default:
		err = fmt.Errorf("file kind %q", kind)
	}
	if err != nil {
		return err
	}
	const meta = `{"status":200,"headers":[]}`
	announced := byte(0)
	if frame == 0x20 {
		announced = 1
	}
	b := []byte{byte(4 + len(meta) + len(where)), 0, 0, 0, frame, 0, announced, 0}
	b = binary.LittleEndian.AppendUint64(b, id)
	b = append(b, byte(len(meta)), 0, 0, 0)
	b = append(append(b, meta...), where...)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}

const (
	rightsAtOnce = 253  // the kernel's limit of fds in one message (SCM_MAX_FD)
	kindLog      = 0x09 // docs/protocol.md
)

// sendRights repeatedly sends copies of an fd, a memfd named "rights", with LOG frames on a
// channel. The engine did not request fds. The result is the number of copies sent. The fd stays
// open.
func sendRights(conn *net.UnixConn) (int, error) {
	fd, err := unix.MemfdCreate("rights", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, err
	}
	rights := make([]int, rightsAtOnce)
	for i := range rights {
		rights[i] = fd
	}
	text := `{"level":"info","message":"with files"}`
	frame := append([]byte{byte(len(text)), 0, 0, 0, kindLog, 15: 0}, text...)
	sent := 0
	for sent < 20*len(rights) {
		switch _, _, err := conn.WriteMsgUnix(frame, unix.UnixRights(rights...), nil); {
		case err == nil:
			sent += len(rights)
		case errors.Is(err, unix.ETOOMANYREFS): // too many fds in flight: wait until the receiver reads them
			runtime.Gosched()
		default:
			return sent, err
		}
	}
	return sent, nil
}

// flood writes to standard error, the function's log, without end.
func flood() error {
	block := []byte(strings.Repeat(strings.Repeat("y", 127)+"\n", 512))
	for {
		if _, err := os.Stderr.Write(block); err != nil {
			return err
		}
	}
}

// churn repeats without end: fill the directory with one file, then with empty files, and remove
// them.
func churn(dir string) error {
	for {
		name := filepath.Join(dir, "churn")
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		block := make([]byte, 64<<10)
		for err == nil {
			_, err = f.Write(block)
		}
		if err = errors.Join(f.Close(), os.Remove(name)); err != nil {
			return err
		}
		made := 0
		for ; err == nil; made++ {
			if f, err = os.Create(name + strconv.Itoa(made)); err == nil {
				err = f.Close()
			}
		}
		for made--; made > 0; made-- {
			if err := os.Remove(name + strconv.Itoa(made-1)); err != nil {
				return err
			}
		}
	}
}

// datagrams sends datagrams to an address until standard input ends, and prints the number sent.
func datagrams(addr string) error {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for n, b := 0, make([]byte, 64); ; n++ {
		_, _ = conn.Write(b) // ignore errors: only sent datagrams matter
		select {
		case <-ended:
			fmt.Println(n)
			return conn.Close()
		default:
		}
	}
}

// hoard opens as many files as the limits allow, in as many processes as the limits allow, and
// keeps the files open.
func hoard() error {
	for {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
			break
		}
	}
	return copies(1 << 20)
}

// spinAll keeps every available CPU busy.
func spinAll() {
	for range runtime.NumCPU() {
		go func() {
			for { //nolint:staticcheck // to spin is what it is for
			}
		}()
	}
	forever()
}
