package adapter

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

// waitReady returns after the server accepts connections and, if the template names a path, answers
// it with a status below 500.
func (p *proxy) waitReady(ctx context.Context, cfg *config) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		ok, err := p.probe(ctx, cfg)
		if ok || err != nil {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-p.server.exited:
		case <-ctx.Done():
		}
		t.Stop()
		select {
		case <-p.server.exited:
			return errNotReady
		default:
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (p *proxy) probe(ctx context.Context, cfg *config) (bool, error) {
	c, err := p.take(ctx)
	if err != nil {
		return false, nil // it does not listen yet
	}
	if cfg.bind {
		if accepted, err := p.accepted(ctx); err != nil {
			return false, err
		} else if !accepted {
			_ = c.Close()
			return false, nil
		}
	}
	if cfg.ready == "" {
		p.put(c)
		return true, nil
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", cfg.ready); err == nil {
		if resp, err := http.ReadResponse(c.r, nil); err == nil { //nolint:bodyclose // its connection is closed
			_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
			if err == nil && resp.StatusCode < 500 {
				_ = c.Close()
				return true, nil
			}
		}
	}
	_ = c.Close()
	return false, nil
}

// accepted waits until the server has accepted all connections: the kernel completes connections
// before the server calls accept, so accepted looks at the queue. It returns false if the server or
// ctx ends.
func (p *proxy) accepted(ctx context.Context) (bool, error) {
	for {
		info, err := unix.GetsockoptTCPInfo(p.server.listener, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return false, err
		}
		if info.Unacked == 0 {
			return true, nil
		}
		t := time.NewTimer(time.Millisecond)
		select {
		case <-t.C:
			continue
		case <-p.server.exited:
		case <-ctx.Done():
		}
		t.Stop()
		return false, nil
	}
}
