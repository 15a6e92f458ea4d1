package load

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/bench/internal/rawhttp"
)

// Call keeps connections to addr, "host:port", busy for a time with POST requests for path, and
// returns the duration of each request. Call is a closed loop: a connection sends the next request
// after the last answer. Each connection sends at least one request. A status other than 200 or 204
// is an error.
func Call(ctx context.Context, addr, path string, connections int, length time.Duration) ([]time.Duration, error) {
	conns := make([]*rawhttp.Conn, 0, connections)
	defer func() {
		for _, c := range conns {
			_ = c.Close() // no unread answer is left
		}
	}()
	for range connections {
		c, err := rawhttp.Dial(addr)
		if err != nil {
			return nil, err
		}
		conns = append(conns, c)
	}
	request := rawhttp.Post(addr, path, nil)
	samples := make([][]time.Duration, connections)
	end := time.Now().Add(length)
	g, ctx := errgroup.WithContext(ctx)
	for i, c := range conns {
		g.Go(func() error {
			begin := time.Now()
			for {
				if err := ctx.Err(); err != nil {
					return err
				}
				resp, err := c.Do(request)
				if err != nil {
					return err
				}
				if resp.Status != 200 && resp.Status != 204 {
					return fmt.Errorf("status %d: %s", resp.Status, resp.Body)
				}
				now := time.Now()
				samples[i] = append(samples[i], now.Sub(begin))
				begin = now
				if !now.Before(end) {
					return nil
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var all []time.Duration
	for _, s := range samples {
		all = append(all, s...)
	}
	return all, nil
}
