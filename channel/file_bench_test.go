package channel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	fn "github.com/fre-engine/fre/function/channel"

	"golang.org/x/sys/unix"
)

// BenchmarkAnswer: BenchmarkAnswer measures an answer's way from a function in Go to a TCP socket,
// in one process: as DATA, in a new memfd, in a memfd sealed once. The other end of the socket
// drains 256 KiB at a time. cpu-µs/op is the time of the whole process.
func BenchmarkAnswer(b *testing.B) {
	for _, kib := range []int{16, 32, 64, 128, 256, 1024, 4096} {
		content := pattern(kib << 10)
		sealed, err := fn.Seal(content)
		if err != nil {
			b.Fatal(err)
		}
		defer sealed.Close()
		for _, kind := range []string{"data", "fresh", "sealed"} {
			b.Run(fmt.Sprintf("%s/%dKiB", kind, kib), func(b *testing.B) {
				files := kind
				if kind == "data" {
					files = ""
				}
				b.Setenv("FRE_FILES", files)
				c := serve(b, Config{}, func(context.Context, *fn.Event) (*fn.Answer, error) {
					a := &fn.Answer{Body: bytes.NewReader(content)}
					switch kind {
					case "sealed":
						a.File, a.Length = sealed, int64(len(content))
					case "fresh": // independent of the threshold
						f, err := fn.Seal(content)
						if err != nil {
							return nil, err
						}
						a.File, a.Length, a.Body = f, int64(len(content)), struct {
							io.Reader
							io.Closer
						}{a.Body, f}
					}
					return a, nil
				})
				sink := drain(b)
				b.SetBytes(int64(len(content)))
				before := cpu(b)
				for b.Loop() {
					r, err := c.Invoke(b.Context(), &Invocation{})
					if err != nil {
						b.Fatal(err)
					}
					if r.File != nil {
						_, err = sink.ReadFrom(io.LimitReader(r.File, r.Length)) // sendfile
						if err == nil {
							_, err = r.File.Seek(0, io.SeekStart)
						}
					} else {
						_, err = io.Copy(struct{ io.Writer }{sink}, r.Body)
					}
					if err != nil {
						b.Fatal(err)
					}
					_ = r.Body.Close()
				}
				b.ReportMetric((cpu(b)-before)/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

// drain returns a connection whose other end is read continuously.
func drain(b *testing.B) *net.TCPConn {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 256<<10)
		for {
			if _, err := other.Read(buf); err != nil {
				return
			}
		}
	}()
	b.Cleanup(func() { _ = conn.Close(); <-done; _ = other.Close() })
	return conn.(*net.TCPConn)
}

// cpu returns the CPU time of this process in microseconds.
func cpu(b *testing.B) float64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	us := func(t unix.Timeval) float64 { return float64(t.Sec)*1e6 + float64(t.Usec) }
	return us(u.Utime) + us(u.Stime)
}
