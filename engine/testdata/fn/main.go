// Command fn is the function the engine's tests run: over the channel by
// default, over stdio when FRE_CHANNEL is not set. The event's path says what
// it does.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

var conn *net.UnixConn

var serving, retire = context.WithCancel(context.Background())

func main() {
	if len(os.Args) > 1 && os.Args[1] == "tool" {
		os.Exit(tool())
	}
	if os.Getenv("FRE_CHANNEL") == "" {
		os.Exit(stdio())
	}
	if len(os.Args) > 1 && os.Args[1] == "park" {
		if err := park(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if os.Getenv("FN_LOAD") == "fail" {
		fmt.Fprintln(os.Stderr, "cannot load")
		os.Exit(3)
	}
	var err error
	conn, err = channel.Inherited()
	if err == nil && os.Getenv("FN_LOAD") == "quit" { // ready, and gone
		ready := `{"protocol":1,"runtime":"go","concurrency":1}`
		_, err = conn.Write(append([]byte{byte(len(ready)), 0, 0, 0, 1, 15: 0}, ready...))
	} else if err == nil {
		err = channel.Serve(serving, conn, channel.Ready{Protocol: 1, Runtime: "go", Concurrency: concurrency(), Upgrades: true}, handle)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tool is a program of build steps that parks without an argument, which is what to
// do. It says how it was started, what it finds in /tmp, and leaves a file there.
func tool() int {
	how, what := "fresh", ""
	if len(os.Args) > 2 {
		what = os.Args[2]
	} else {
		load, err := parked()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		how, what = "parked", load.Handler
	}
	left, err := os.ReadDir("/tmp")
	if err == nil {
		err = os.WriteFile("/tmp/left", nil, 0o600)
	}
	given, readErr := os.ReadFile("/function/given")
	writable := os.WriteFile("/function/given", []byte("poisoned"), 0o600) == nil
	err = errors.Join(err, readErr, os.WriteFile("/work/made", []byte(what), 0o600))
	fmt.Println(how, what, string(given), len(left), writable, os.Getuid(), err)
	switch what {
	case "fail":
		fmt.Fprintln(os.Stderr, "went wrong")
		return 3
	case "hang":
		<-time.After(time.Hour)
	}
	return 0
}

// park is what an interpreter's bootstrap does without a handler.
func park() error {
	load, err := parked()
	if err != nil {
		return err
	}
	os.Clearenv()
	for name, value := range load.Env {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return os.Chdir(load.Dir)
}

// parked says PARKED and waits for LOAD, docs/protocol.md frame by frame.
func parked() (load channel.Load, err error) {
	if os.Getenv("FN_PARK") == "fail" {
		return load, errors.New("cannot park")
	}
	// Not as an os.File, which would close it when nobody looks.
	if _, err := syscall.Write(3, []byte{4: 0x0b, 15: 0}); err != nil {
		return load, err
	}
	head := make([]byte, 16)
	if _, err := io.ReadFull(rawChannel{}, head); err != nil {
		return load, err
	}
	payload := make([]byte, binary.LittleEndian.Uint32(head))
	if _, err := io.ReadFull(rawChannel{}, payload); err != nil {
		return load, err
	}
	if err := json.Unmarshal(payload, &load); err != nil || head[4] != 0x0c {
		return load, fmt.Errorf("LOAD of kind %#x: %w", head[4], err)
	}
	return load, nil
}

type rawChannel struct{}

func (rawChannel) Read(p []byte) (int, error) {
	n, err := syscall.Read(3, p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

type shouting struct{ r io.Reader }

func (s shouting) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	copy(p, bytes.ToUpper(p[:n]))
	return n, err
}

type lastWords struct{}

func (lastWords) Read([]byte) (int, error) {
	os.Exit(7)
	return 0, io.EOF
}

func stdio() int {
	switch path := os.Getenv("FRE_PATH"); {
	case path == "/fail":
		fmt.Fprintln(os.Stderr, "went wrong")
		return 3
	case path == "/hang":
		<-time.After(time.Hour) // select {} would be a deadlock to Go, and end
	case path == "/big": // more than is held back before the status goes out
		fmt.Print(strings.Repeat("x", 3<<20))
	case path == "/bigfail":
		fmt.Print(strings.Repeat("x", 3<<20))
		return 4
	case path == "/whoami": // user, network interfaces, capabilities
		links, err := net.Interfaces()
		if err != nil {
			return 1
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return 1
		}
		_, caps, _ := strings.Cut(string(status), "CapEff:")
		caps, _, _ = strings.Cut(caps, "\n")
		fmt.Println(os.Getuid(), len(links), strings.TrimSpace(caps))
	case path == "/fill": // all but a fortieth of the disk, and waits for what happens
		f, err := os.Create("/work/fill")
		for err == nil {
			var disk syscall.Statfs_t
			if _, err = f.Write(make([]byte, 64<<10)); err == nil {
				err = syscall.Statfs("/work", &disk)
			}
			if err == nil && disk.Bavail < disk.Blocks/40 {
				<-time.After(time.Hour)
			}
		}
		fmt.Fprintln(os.Stderr, err)
		return 5
	case path == "/env":
		fmt.Print(strings.Join(os.Environ(), "\n"))
	default:
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return 1
		}
	}
	return 0
}

// morsels gives a body little by little.
type morsels struct{ r io.Reader }

func (m morsels) Read(p []byte) (int, error) { return m.r.Read(p[:min(len(p), 10_000)]) }

func handle(ctx context.Context, ev *channel.Event) (*channel.Answer, error) {
	if rest, ok := strings.CutPrefix(ev.Path, "/call/"); ok { // NAME/path: what another function says to that
		name, path, _ := strings.Cut(rest, "/")
		r, err := ev.Call(ctx, &channel.Called{Function: name, Request: channel.Request{Method: ev.Method, Path: "/" + path, Query: ev.Query, Body: ev.Body}})
		if refused := (*channel.Failure)(nil); errors.As(err, &refused) {
			return &channel.Answer{Status: 502, Body: strings.NewReader(refused.Error())}, nil
		} else if err != nil {
			return nil, err
		}
		return &channel.Answer{Status: r.Status, Headers: r.Headers, Body: r.Body}, nil
	}
	switch ev.Path {
	case "/call": // a flood of calls by hand, of which nobody hears the end
		meta := fmt.Sprintf(`{"of":%s,"function":"g","method":"GET","path":"/large","query":"1000000","headers":[]}`, ev.Query)
		own, err := conn.File() // the channel's package knows of no such calls, and ends with the first answer
		if err != nil {
			return nil, err
		}
		defer own.Close()
		for id := uint64(channel.FirstCall); ; id++ {
			p := append(binary.LittleEndian.AppendUint32(nil, uint32(len(meta))), meta...)
			head := append(binary.LittleEndian.AppendUint32(nil, uint32(len(p))), 0x30, 0, 0, 0)
			if _, err := own.Write(append(binary.LittleEndian.AppendUint64(head, id), p...)); err != nil {
				return nil, err
			}
		}
	case "/headers": // the event's own, one a line
		var b strings.Builder
		for _, h := range ev.Headers {
			fmt.Fprintf(&b, "%s: %s\n", h[0], h[1])
		}
		return &channel.Answer{Status: 200, Body: strings.NewReader(b.String())}, nil
	case "/deadline": // how many milliseconds are left
		return &channel.Answer{Status: 200, Body: strings.NewReader(strconv.FormatInt(ev.DeadlineMS-time.Now().UnixMilli(), 10))}, nil
	case "/fail":
		return nil, errors.New("went wrong")
	case "/hang": // gives up when it is told to
		<-ctx.Done()
		return nil, ctx.Err()
	case "/stuck":
		select {}
	case "/retire": // answers, and takes no more events
		retire()
	case "/exit":
		os.Exit(7)
	case "/last": // a hundred thousand bytes, and exits
		return &channel.Answer{Status: 200, Body: io.MultiReader(bytes.NewReader(make([]byte, 60_000)), bytes.NewReader(make([]byte, 40_000)), lastWords{})}, nil
	case "/early": // answers before it has read the body
		return &channel.Answer{Status: 200, Body: strings.NewReader("early")}, nil
	case "/shout": // says what comes in upper case, if it was asked to shout
		if ev.Upgrade != "shout" {
			return &channel.Answer{Status: 426, Body: strings.NewReader(ev.Upgrade)}, nil
		}
		return &channel.Answer{Status: 101, Headers: [][2]string{{"Upgrade", "shout"}, {"X-Volume", "11"}}, Body: shouting{ev.Body}}, nil
	case "/slurp": // answers once it has read the body
		body, err := io.ReadAll(ev.Body)
		return &channel.Answer{Status: 200, Body: strings.NewReader(strconv.Itoa(len(body)))}, err
	case "/large": // so many bytes as the query says
		n, err := strconv.Atoi(ev.Query)
		return &channel.Answer{Status: 200, Body: bytes.NewReader(bytes.Repeat([]byte("x"), n))}, err
	case "/stream": // so many bytes as the query says, of which nobody knows how many are left
		n, err := strconv.Atoi(ev.Query)
		return &channel.Answer{Status: 200, Body: io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("x"), n)))}, err
	case "/morsels": // as many, by 10,000: no pipe pays for them
		n, err := strconv.Atoi(ev.Query)
		return &channel.Answer{Status: 200, Body: morsels{io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("x"), n)))}}, err
	case "/named": // the first event of an instance: FILE by hand (docs/protocol.md)
		const meta, where = `{"status":200,"headers":[]}`, `{"offset":0,"length":100000,"name":"answer"}`
		if err := os.WriteFile("/tmp/answer", bytes.Repeat([]byte("x"), 100000), 0o600); err != nil {
			return nil, err
		}
		frame := append([]byte{byte(4 + len(meta) + len(where)), 0, 0, 0, 0x21, 0, 0, 0, 1, 15: 0}, byte(len(meta)), 0, 0, 0)
		if _, err := conn.Write(append(append(frame, meta...), where...)); err != nil {
			return nil, err
		}
		select {}
	case "/log":
		return nil, ev.Log("info", strings.Repeat("\x01", 300<<10))
	case "/status": // status, header line and body as the query says
		return respond(ev)
	case "/slow":
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the function's own work
	case "/print":
		fmt.Println("hello log")
	case "/flood":
		line := strings.Repeat("y", 1000) + "\n"
		for range 64 << 10 {
			if _, err := os.Stdout.WriteString(line); err != nil {
				return nil, err
			}
		}
	case "/invocation":
		return &channel.Answer{Status: 200, Body: strings.NewReader(ev.Function + " " + ev.Tenant)}, nil
	case "/pid":
		host, err := os.Hostname()
		return &channel.Answer{Status: 200, Body: strings.NewReader(fmt.Sprint(host, os.Getpid()))}, err
	case "/look": // what the query names: environment, directory, or a file's content
		q, err := url.ParseQuery(ev.Query)
		if err != nil {
			return nil, err
		}
		out := os.Getenv(q.Get("env"))
		if q.Has("dir") {
			if out, err = os.Getwd(); err != nil {
				return nil, err
			}
		}
		if name := q.Get("file"); name != "" {
			b, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			out = string(b)
		}
		if name := q.Get("write"); name != "" {
			if err := os.WriteFile(name, []byte("written"), 0o600); err != nil {
				return nil, err
			}
		}
		if name := q.Get("fill"); name != "" { // with so many MiB, or why not
			f, err := os.Create(name)
			if err != nil {
				return nil, err
			}
			mib, _ := strconv.Atoi(q.Get("mib"))
			for i := 0; i < mib && err == nil; i++ {
				_, err = f.Write(bytes.Repeat([]byte("x"), 1<<20))
			}
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				out = err.Error()
			}
		}
		return &channel.Answer{Status: 200, Body: strings.NewReader(out)}, nil
	case "/garbage":
		if _, err := conn.Write([]byte("this is no frame at all, whatever it looks like")); err != nil {
			return nil, err
		}
		select {}
	}
	return &channel.Answer{Status: 200, Body: ev.Body}, nil
}

// respond answers what the query says: status=204&header=Name:value&body=text;
// with fail=1 the body breaks off, with endless=1 it goes on until cancelled.
func respond(ev *channel.Event) (*channel.Answer, error) {
	q, err := url.ParseQuery(ev.Query)
	if err != nil {
		return nil, err
	}
	a := &channel.Answer{Body: strings.NewReader(q.Get("body"))}
	if a.Status, err = strconv.Atoi(q.Get("status")); err != nil {
		return nil, err
	}
	for _, h := range q["header"] {
		name, value, _ := strings.Cut(h, ":")
		a.Headers = append(a.Headers, [2]string{name, value})
	}
	filler := strings.NewReader(strings.Repeat("x", 256<<10))
	switch {
	case q.Has("fail"):
		a.Body = io.MultiReader(filler, failing{})
	case q.Has("endless"):
		a.Body = endless{}
	}
	return a, nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broke off") }

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func concurrency() int {
	n, err := strconv.Atoi(os.Getenv("FRE_CONCURRENCY"))
	if err != nil {
		return 1
	}
	return n
}
