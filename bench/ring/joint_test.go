package ring

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// The benchmark moves a body from a function to the next of a pipeline: by sockets through an
// engine, as DATA frames; in a file that is handed over; in a pipe; by a ring.
func BenchmarkJoint(b *testing.B) {
	const piece = 64 << 10
	for _, size := range []struct {
		name  string
		bytes int
	}{{"64K", 64 << 10}, {"1M", 1 << 20}, {"8M", 8 << 20}} {
		body, into := make([]byte, size.bytes), make([]byte, size.bytes)
		both := func(b *testing.B, produce, consume func() error) {
			b.Helper()
			done := make(chan error, 1)
			go func() { done <- produce() }()
			if err := consume(); err != nil {
				b.Fatal(err)
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
		b.Run("sockets/"+size.name, func(b *testing.B) {
			b.SetBytes(int64(size.bytes))
			from, in := fretest.SocketPair(b, unix.SOCK_STREAM)
			out, to := fretest.SocketPair(b, unix.SOCK_STREAM)
			go func() {
				buf := make([]byte, piece)
				_, _ = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, buf)
			}()
			for b.Loop() {
				both(b, func() error { return inPieces(from, body, piece) }, func() error { _, err := io.ReadFull(to, into); return err })
			}
		})
		b.Run("memfd/"+size.name, func(b *testing.B) {
			b.SetBytes(int64(size.bytes))
			from, in := fretest.SocketPair(b, unix.SOCK_STREAM)
			out, to := fretest.SocketPair(b, unix.SOCK_STREAM)
			for b.Loop() {
				both(b, func() error {
					fd, err := unix.MemfdCreate("joint", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
					if err != nil {
						return err
					}
					f := os.NewFile(uintptr(fd), "joint")
					defer f.Close()
					if _, err := f.Write(body); err != nil {
						return err
					}
					if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, 0xf); err != nil {
						return err
					}
					return passFile(from, f)
				}, func() error {
					engine, err := takeFile(in)
					if err != nil {
						return err
					}
					err = passFile(out, engine)
					_ = engine.Close()
					if err != nil {
						return err
					}
					f, err := takeFile(to)
					if err != nil {
						return err
					}
					defer f.Close()
					_, err = f.ReadAt(into, 0)
					return err
				})
			}
		})
		b.Run("pipe/"+size.name, func(b *testing.B) {
			b.SetBytes(int64(size.bytes))
			for b.Loop() {
				r, w, err := os.Pipe()
				if err != nil {
					b.Fatal(err)
				}
				if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 1<<20); err != nil {
					b.Fatal(err)
				}
				both(b, func() error { return errors.Join(inPieces(w, body, piece), w.Close()) },
					func() error { _, err := io.ReadFull(r, into); return errors.Join(err, r.Close()) })
			}
		})
		b.Run("ring/"+size.name, func(b *testing.B) {
			b.SetBytes(int64(size.bytes))
			for b.Loop() {
				pf, cf, err := Create(1 << 20)
				if err != nil {
					b.Fatal(err)
				}
				p, err := NewProducer(pf)
				if err != nil {
					b.Fatal(err)
				}
				c, err := NewConsumer(cf)
				if err != nil {
					b.Fatal(err)
				}
				both(b, func() error {
					for at := 0; at < len(body); at += piece {
						if err := p.Put(b.Context(), body[at:at+piece]); err != nil {
							return err
						}
					}
					return nil
				}, func() error {
					for at := 0; at < len(into); {
						record, err := c.Peek(b.Context())
						if err != nil {
							return err
						}
						at += copy(into[at:], record)
						c.Release(1)
					}
					return nil
				})
				if err := p.Close(); err != nil {
					b.Fatal(err)
				}
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func inPieces(w io.Writer, body []byte, piece int) error {
	for at := 0; at < len(body); at += piece {
		if _, err := w.Write(body[at : at+piece]); err != nil {
			return err
		}
	}
	return nil
}

func passFile(conn *net.UnixConn, f *os.File) error {
	_, _, err := conn.WriteMsgUnix([]byte{1}, unix.UnixRights(int(f.Fd())), nil)
	return err
}

func takeFile(conn *net.UnixConn) (*os.File, error) {
	var one [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(one[:], oob)
	if err != nil {
		return nil, err
	}
	fds := received(oob[:n])
	return os.NewFile(uintptr(fds[0]), "joint"), nil
}
