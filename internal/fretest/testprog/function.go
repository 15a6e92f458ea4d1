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

	"github.com/fre-engine/fre/channel"
)

// function answers events: over the channel where there is one, by path as answer
// says; else, one event per process, by running the command that the event's path
// names with the arguments that its query holds: /fill?/tmp/x.
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
	var events uint64 // as the engine counts them on this channel: they come one by one
	return channel.Serve(context.Background(), conn, ready, func(_ context.Context, ev *channel.Event) (*channel.Answer, error) {
		events++
		return answer(conn, events, ev)
	})
}

// pattern is what made bodies consist of, again and again.
const pattern = "0123456789abcdef"

// kept are the files of answers that stay open: of those "truncated", until /truncate
// makes them so.
var kept []*os.File

// answer answers one event: /rights sends files that nobody asked for, /file/KIND gives
// one as the body, /stream a body of unknown length, /end/HOW one that ends badly, /lie a
// body that contradicts its header, /large 1 MiB at once; the query is the body's length,
// where none is named 1 MiB for streams. All else is answered with what was sent, which
// /say prints as well.
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
		select {} // the answer is sent, or the engine ends this
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
	case "large": // which goes as a file where the engine takes them
		return &channel.Answer{Status: 200, Body: strings.NewReader(strings.Repeat(pattern, 1<<16))}, nil
	}
	body, err := io.ReadAll(ev.Body)
	if command == "say" {
		fmt.Println("out", string(body))
		fmt.Fprintln(os.Stderr, "err", string(body))
	}
	return &channel.Answer{Status: 200, Body: strings.NewReader(string(body))}, err
}

// stream is the pattern, so many bytes of it, and then an end.
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

// badEnd is how a function stops in the middle of an answer. It has no SIGKILL of its
// own: it is process 1.
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

// sendFile answers the event with a file of the kind that is
// named, as FD or FILE (docs/protocol.md) by hand.
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
		for range 20 { // where the kernel is busy with a page it says EBUSY, after 150 ms
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
	rightsAtOnce = 253  // the kernel's own limit of fds in one message (SCM_MAX_FD)
	kindLog      = 0x09 // docs/protocol.md
)

// sendRights sends an open file, a memfd named "rights", again and again along
// with LOG frames on a channel, where nobody asked for any, and returns how many
// times. The file stays open here.
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
		case errors.Is(err, unix.ETOOMANYREFS): // so many are under way already: until they are read
			runtime.Gosched()
		default:
			return sent, err
		}
	}
	return sent, nil
}

// flood writes to standard error without end, which is a function's log.
func flood() error {
	block := []byte(strings.Repeat(strings.Repeat("y", 127)+"\n", 512))
	for {
		if _, err := os.Stderr.Write(block); err != nil {
			return err
		}
	}
}

// churn fills a directory with a file, and with empty files, and removes them, on
// and on.
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

// datagrams sends datagrams to an address for as long as its standard input is open, and
// prints how many it has.
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
		_, _ = conn.Write(b) // refused, or dropped: it is the sending that counts
		select {
		case <-ended:
			fmt.Println(n)
			return conn.Close()
		default:
		}
	}
}

// hoard opens files in as many processes as there may be, until none can be
// opened, and keeps them.
func hoard() error {
	for {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
			break
		}
	}
	return copies(1 << 20)
}

// spinAll keeps every CPU it may have busy.
func spinAll() {
	for range runtime.NumCPU() {
		go func() {
			for { //nolint:staticcheck // to spin is what it is for
			}
		}()
	}
	forever()
}
