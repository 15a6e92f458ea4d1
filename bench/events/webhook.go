package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/stats"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// hookSecret is the key that signs the webhooks.
const hookSecret = "bench"

// hooks holds the times of webhooks and of synchronous requests, both sequential and each in a
// fresh sandbox.
type hooks struct {
	Line     stats.Summary `json:"first_line"`
	Accepted stats.Summary `json:"accepted"`
	Direct   stats.Summary `json:"direct_first_line"` // of the synchronous requests
}

// webhooks sends n webhooks, signed as GitHub signs them, and n synchronous requests.
func webhooks(ctx context.Context, e *engine.Engine, n int) (h hooks, err error) {
	const function = "bench-webhook"
	file := filepath.Join(e.Dir(), "secret")
	if err := os.WriteFile(file, []byte(hookSecret), 0o600); err != nil {
		return h, err
	}
	if _, err := e.CLI(ctx, "secret", "create", function, "--from-file", file); err != nil {
		return h, err
	}
	if _, err := e.DeployWith(ctx, "bench/functions/python-clock", function, map[string]any{
		"triggers": []any{map[string]any{"name": "push", "webhook": map[string]any{"signature": "github", "secret": function}}},
	}); err != nil {
		return h, err
	}
	direct := peer.FRE(e.Addr(), function)
	defer func() { err = errors.Join(err, direct.Close()) }()
	var lines, answers, beside []time.Duration
	for i := range n + 3 { // the first three read files from the disk
		if err := host.Settle(ctx); err != nil {
			return h, err
		}
		line, answer, err := webhook(ctx, e, fmt.Sprintf("http://%s/hooks/%s/push", e.Addr(), function), i)
		if err != nil {
			return h, err
		}
		if err := host.Settle(ctx); err != nil {
			return h, err
		}
		start, err := direct.Sequential(1)
		if err != nil {
			return h, err
		}
		if i >= 3 {
			lines, answers, beside = append(lines, line), append(answers, answer), append(beside, start[0].Took)
		}
	}
	return hooks{stats.Summarize(lines), stats.Summarize(answers), stats.Summarize(beside)}, nil
}

func (h hooks) markdown() string {
	var b strings.Builder
	b.WriteString("\n## Webhooks\n\nMilliseconds, one after the other, each in a fresh sandbox: from the POST of 4 KiB, signed as GitHub signs, to the clock that the Python handler's first line reads; in between the event is on disk, and 202 was answered. Beside it a synchronous request of the same function.\n\n")
	b.WriteString("| | starts | p50 | p99 | slowest |\n|---|---:|---:|---:|---:|\n")
	for _, row := range []struct {
		name string
		stats.Summary
	}{{"webhook, to the first line", h.Line}, {"webhook, to 202", h.Accepted}, {"request, to the first line", h.Direct}} {
		ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
		fmt.Fprintf(&b, "| %s | %d | %.2f | %.2f | %.2f |\n", row.name, row.Count, ms(row.P50), ms(row.P99), ms(row.Slowest))
	}
	return b.String()
}

// webhook sends one webhook. line is the time until the handler's first line, answer until the 202.
func webhook(ctx context.Context, e *engine.Engine, url string, i int) (line, answer time.Duration, err error) {
	body := fmt.Sprintf(`{"ref":"refs/heads/main","after":"%040d","filler":%q}`, i, strings.Repeat("x", 4000))
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte(body))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Github-Event", "push")
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	began, sent := monotonic(), time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	answer = time.Since(sent)
	if err := resp.Body.Close(); err != nil {
		return 0, 0, err
	}
	id := resp.Header.Get("X-Call-Id")
	if resp.StatusCode != http.StatusAccepted || id == "" {
		return 0, 0, fmt.Errorf("webhook: %s, X-Call-Id %q", resp.Status, id)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := host.Settle(ctx); err != nil { // the next command would take CPU time from the handler
		return 0, 0, err
	}
	err = testdaemon.Until(ctx, func() error {
		ev, err := engine.JSON[api.QueuedEventDetails](ctx, e, "events", "show", id)
		if err != nil {
			return err
		}
		if ev[0].State != "done" {
			return fmt.Errorf("event %s: %s %s", id, ev[0].State, ev[0].Error)
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	out, err := e.CLI(ctx, "events", "show", id, "--body")
	if err != nil {
		return 0, 0, err
	}
	clock, _, _ := strings.Cut(strings.TrimSpace(out), " ")
	ns, err := strconv.ParseInt(clock, 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("not the clock's answer: %q", out)
	}
	return time.Duration(ns) - began, answer, nil
}

// monotonic returns the clock that the handler reads.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // Linux always has the clock
	return time.Duration(t.Nano())
}
