package oci

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// retries is the number of consecutive failures after which a request or a download gives up. A
// connection that brought a byte resets the count.
const retries = 5

// maxPause bounds the wait that a registry can ask for (Retry-After).
const maxPause = time.Minute

// retried is an http.RoundTripper that repeats requests. GET and HEAD are repeated after a broken
// connection, 429 and 5xx. Requests with side effects are repeated after 429 only: this status says
// that the registry has done nothing.
type retried struct {
	inner http.RoundTripper
	pause func(ctx context.Context, d time.Duration) error
}

// RoundTrip implements http.RoundTripper.
func (t *retried) RoundTrip(r *http.Request) (*http.Response, error) {
	for n := 0; ; n++ {
		resp, err := t.inner.RoundTrip(r)
		d := backoff(n)
		switch safe := r.Method == http.MethodGet || r.Method == http.MethodHead; {
		case n == retries-1 || r.Context().Err() != nil:
			return resp, err
		case err != nil:
			if !safe || !breaks(err) {
				return resp, err
			}
		case !passing(resp.StatusCode, safe):
			return resp, nil
		default:
			if said, ok := retryAfter(resp.Header, time.Now()); ok {
				d = said
			}
			if d > maxPause {
				return resp, nil // the answer tells the user how long to wait
			}
			again := rewound(r)
			if again == nil {
				return resp, nil
			}
			r = again
			_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // drain, to reuse the connection
			_ = resp.Body.Close()
		}
		if err := t.pause(r.Context(), d); err != nil {
			return nil, err
		}
	}
}

// passing reports whether another attempt may get a better status. safe says that the request
// changes nothing.
func passing(status int, safe bool) bool {
	return status == http.StatusTooManyRequests || safe && status >= 500 && status != http.StatusNotImplemented
}

// rewound returns the request with its body from the start, or nil if the body cannot be had again.
func rewound(r *http.Request) *http.Request {
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	if r.GetBody == nil {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	r = r.Clone(r.Context())
	r.Body = body
	return r
}

// breaks reports whether a new connection may succeed.
func breaks(err error) bool {
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return false // its time is up
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ETIMEDOUT):
		return true
	}
	return strings.Contains(err.Error(), "server closed idle connection") || strings.Contains(err.Error(), "stream error") // http2 has no exported types for these errors
}

// backoff is the pause after the nth failure: 200 ms, doubled each time, plus up to a quarter.
func backoff(n int) time.Duration {
	d := 200 * time.Millisecond << n
	return d + rand.N(d/4)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retryAfter parses Retry-After (RFC 9110 section 10.2.3): seconds or a date.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	s := h.Get("Retry-After")
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now)), true
	}
	return 0, false
}
