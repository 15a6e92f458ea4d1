package httpserver_test

import (
	"encoding/binary"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/fre-engine/fre/httpserver"
)

// BenchmarkHTTP2: BenchmarkHTTP2 compares answers over cleartext HTTP/2 with those of net/http, on
// 4 connections with 4 streams each, in rounds of 64. Both have the same client, which reads the
// heads of frames and discards bodies.
func BenchmarkHTTP2(b *testing.B) {
	for _, size := range []int{100, 64 << 10, 1 << 20} {
		body := large[:size]
		path := filepath.Join(b.TempDir(), "body")
		if err := os.WriteFile(path, body, 0o600); err != nil {
			b.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = file.Close() })
		name := strconv.Itoa(size)
		b.Run("fre/"+name, func(b *testing.B) {
			rounds(b, size, start(b, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
				x.Set("Content-Type", "application/octet-stream")
				_ = x.Send(200, body)
			})}))
		})
		b.Run("fre file/"+name, func(b *testing.B) {
			rounds(b, size, start(b, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
				x.Set("Content-Type", "application/octet-stream")
				_ = x.SendFile(200, file, 0, int64(size))
			})}))
		})
		b.Run("go/"+name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/octet-stream")
				w.Header().Set("Content-Length", strconv.Itoa(size))
				_, _ = w.Write(body)
			})}
			s.Protocols.SetUnencryptedHTTP2(true)
			go func() { _ = s.Serve(l) }()
			defer s.Close()
			rounds(b, size, l.Addr().String())
		})
	}
}

// rounds requests 64 answers of size bytes, again and again.
func rounds(b *testing.B, size int, addr string) {
	b.Helper()
	const conns, streams, each = 4, 4, 16
	turn := make([]chan struct{}, conns)
	var done, ended sync.WaitGroup
	for i := range turn {
		turn[i] = make(chan struct{})
		c := dialH2(b, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		c.must(c.WriteWindowUpdate(0, 1<<30))
		ended.Go(func() {
			d := &drain{client: c, block: []byte{0x82, 0x86, 0x84, 0x01, 1, 'a'}, in: make([]byte, 256<<10)}
			for range turn[i] {
				d.round(streams, each, size)
				done.Done()
			}
		})
	}
	b.SetBytes(int64(conns * each * size))
	b.ReportAllocs()
	for b.Loop() {
		done.Add(conns)
		for i := range turn {
			turn[i] <- struct{}{}
		}
		done.Wait()
	}
	b.StopTimer()
	for i := range turn {
		close(turn[i])
	}
	ended.Wait()
}

// drain reads answers and parses only the heads of frames.
type drain struct {
	*client
	block  []byte // of a request; leaves the table unchanged
	out    []byte
	in     []byte
	stream uint32
	skip   int    // rest of a payload
	head   []byte // received part of a frame's head
	taken  int    // received and not yet acknowledged
}

func (d *drain) ask(n int) {
	d.out = d.out[:0]
	for range n {
		d.stream += 2
		d.out = append(d.out, 0, 0, byte(len(d.block)), byte(http2.FrameHeaders), byte(http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream))
		d.out = binary.BigEndian.AppendUint32(d.out, d.stream-1)
		d.out = append(d.out, d.block...)
	}
	if d.taken > 1<<28 {
		d.out = append(d.out, 0, 0, 4, byte(http2.FrameWindowUpdate), 0, 0, 0, 0, 0)
		d.out = binary.BigEndian.AppendUint32(d.out, uint32(d.taken))
		d.taken = 0
	}
	if _, err := d.conn.Write(d.out); err != nil {
		d.t.Error(err)
	}
}

func (d *drain) round(streams, each, size int) {
	d.ask(streams)
	asked, got, bytes := streams, 0, 0
	for got < each {
		n, err := d.conn.Read(d.in)
		if err != nil {
			d.t.Error(err)
			return
		}
		ended := 0
		for p := d.in[:n]; len(p) > 0; {
			m := min(d.skip, len(p))
			d.skip -= m
			if p = p[m:]; len(p) == 0 {
				break
			}
			m = min(9-len(d.head), len(p))
			d.head = append(d.head, p[:m]...)
			p = p[m:]
			if len(d.head) < 9 {
				break
			}
			d.skip = int(d.head[0])<<16 | int(d.head[1])<<8 | int(d.head[2])
			if kind := http2.FrameType(d.head[3]); kind == http2.FrameData || kind == http2.FrameHeaders {
				if kind == http2.FrameData {
					bytes += d.skip
					d.taken += d.skip
				}
				if d.head[4]&byte(http2.FlagDataEndStream) != 0 {
					ended++
				}
			} else if kind == http2.FrameRSTStream || kind == http2.FrameGoAway {
				d.t.Errorf("a frame of %v", kind)
				return
			}
			d.head = d.head[:0]
		}
		got += ended
		if more := min(ended, each-asked); more > 0 {
			asked += more
			d.ask(more)
		}
	}
	if bytes != each*size {
		d.t.Errorf("%d bytes, want %d", bytes, each*size)
	}
}
