package main

import (
	"context"
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

// function answers events. Over the channel where there is one, with what was sent, which
// /say prints as well, at /large with 1 MiB, at /stream with as much, bit by bit; else, one
// event per process, by running the command that the event's path names with the
// arguments that its query holds: /fill?/tmp/x.
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
	var events byte // as the engine counts them on this channel: they come one by one
	return channel.Serve(context.Background(), conn, ready, func(_ context.Context, ev *channel.Event) (*channel.Answer, error) {
		if ev.Path == "/rights" {
			n, err := sendRights(conn)
			return &channel.Answer{Status: 200, Body: strings.NewReader(strconv.Itoa(n))}, err
		}
		events++
		if kind, ok := strings.CutPrefix(ev.Path, "/file/"); ok {
			if err := sendFile(conn, events, kind); err != nil {
				return nil, err
			}
			select {} // the answer is sent, or the engine ends this
		}
		if ev.Path == "/large" { // 1 MiB, which goes as a file where the engine takes them
			return &channel.Answer{Status: 200, Body: strings.NewReader(strings.Repeat("0123456789abcdef", 1<<16))}, nil
		}
		if ev.Path == "/stream" { // a body of no known length
			return &channel.Answer{Status: 200, Body: io.MultiReader(strings.NewReader(strings.Repeat("0123456789abcdef", 1<<16)))}, nil
		}
		body, err := io.ReadAll(ev.Body)
		if ev.Path == "/say" {
			fmt.Println("out", string(body))
			fmt.Fprintln(os.Stderr, "err", string(body))
		}
		return &channel.Answer{Status: 200, Body: strings.NewReader(string(body))}, err
	})
}

// sendFile answers the event with a file of the kind that is
// named, as FD or FILE (docs/protocol.md) by hand.
func sendFile(conn *net.UnixConn, id byte, kind string) error {
	const content = "what a function gives as its answer"
	f, err := os.OpenFile("/tmp/answer", os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.WriteString(content)
	}
	if err != nil {
		return err
	}
	memfd, err := unix.MemfdCreate("wrong", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		_, err = unix.Write(memfd, []byte(content))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(memfd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
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
	switch kind {
	case "sealed":
	case "unsealed":
		fds[0] = int(f.Fd())
	case "named":
		err = f.Close()
		named("answer")
	case "named-open":
		named("answer")
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
		open("/tmp/answer", unix.O_PATH)
	case "write-only":
		open("/tmp/answer", unix.O_WRONLY)
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
		err = errors.Join(os.Remove("/tmp/answer"), os.Symlink("/proc/self/environ", "/tmp/answer"))
		named("answer")
	case "fifo":
		err = errors.Join(os.Remove("/tmp/answer"), unix.Mkfifo("/tmp/answer", 0o600))
		named("answer")
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
	b := []byte{byte(4 + len(meta) + len(where)), 0, 0, 0, frame, 0, announced, 0, id, 15: 0}
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
