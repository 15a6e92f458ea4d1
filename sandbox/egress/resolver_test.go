package egress

import (
	"context"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fullListener has no free file descriptor for an hour of connections.
type fullListener struct {
	net.Listener // nil: the resolver calls no other method

	until time.Time
	tries int
}

func (l *fullListener) Accept() (net.Conn, error) {
	if l.tries++; l.tries > 3600*1000 || time.Now().After(l.until) {
		return nil, net.ErrClosed
	}
	return nil, os.NewSyscallError("accept4", unix.EMFILE)
}

// TestResolverOutOfFiles: Without a free file descriptor the resolver tries again about once a
// second, and stops at once on Close.
func TestResolverOutOfFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fullListener{until: time.Now().Add(time.Hour)}
		r := &resolver{tcp: l}
		r.ctx, r.stop = context.WithCancel(t.Context())
		began := time.Now()
		r.serveTCP()
		if took := time.Since(began); took < time.Hour || l.tries < 3600 {
			t.Errorf("tried %d times in %v, want some each second of an hour", l.tries, took)
		}

		l.until, l.tries = time.Now().Add(time.Hour), 0
		began = time.Now()
		r.work.Go(r.serveTCP)
		r.stop()
		r.work.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("went on for %v once it was stopped", took)
		}
	})
}
