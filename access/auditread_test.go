package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func auditOf(t *testing.T, a *Access, o AuditOptions) (on []string) {
	t.Helper()
	err := a.Audit(t.Context(), o, func(e Entry) error { on = append(on, e.On); return nil })
	if err != nil {
		t.Fatalf("Audit(%+v): %v", o, err)
	}
	return on
}

// Entries come out of the rotated files in order, past damaged lines.
func TestAuditRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "access")
	clock := newClock()
	a := open(t, Config{Dir: dir, AuditBytes: 400, AuditFiles: 3, Now: clock.now})
	var want []string
	for i := range 10 {
		a.Record(Entry{Who: "root", Tenant: []string{"acme", "other"}[i%2], Action: "POST /v1/functions", On: fmt.Sprint(i), Result: Done, Status: 200})
		clock.add(time.Minute)
		want = append(want, fmt.Sprint(i))
	}
	if _, err := os.Stat(filepath.Join(dir, "audit.ndjson.3")); err != nil {
		t.Fatalf("it was to be rotated thrice: %v", err)
	}
	if diff := cmp.Diff(want, auditOf(t, a, AuditOptions{Tail: MaxAuditTail})); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[7:], auditOf(t, a, AuditOptions{Tail: 3})); diff != "" {
		t.Errorf("the last three (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[8:], auditOf(t, a, AuditOptions{Tail: 5, Since: clock.now().Add(-2 * time.Minute)})); diff != "" {
		t.Errorf("of two minutes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"6", "8"}, auditOf(t, a, AuditOptions{Tail: 2, Keep: func(e Entry) bool { return e.Tenant == "acme" }})); diff != "" {
		t.Errorf("acme's last two (-want +got):\n%s", diff)
	}
	if got := auditOf(t, a, AuditOptions{}); got != nil {
		t.Errorf("none: %q", got)
	}

	// Lines without an entry are skipped: a torn line, a line of another kind, a long line whose
	// rest looks like an entry.
	rotated, err := os.ReadFile(filepath.Join(dir, "audit.ndjson.1"))
	if err != nil {
		t.Fatal(err)
	}
	long := `{"action":"long","on":"` + strings.Repeat("x", 3*auditLine) + "\"}\n" + strings.Repeat("x", auditLine) + `{"action":"rest","on":"rest"}` + "\n"
	rotated = append([]byte(long+"{}\nnull\n\n"), rotated...)
	rotated = append(rotated, `{"action":"POST /v1/functions","on":"to`...)
	if err := os.WriteFile(filepath.Join(dir, "audit.ndjson.1"), rotated, 0o600); err != nil {
		t.Fatal(err)
	}
	newest, err := os.ReadFile(filepath.Join(dir, "audit.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	newest = append(bytes.TrimSuffix(newest, []byte{'\n'}), "\n{\"action\":\"torn\",\"on\""...)
	if err := os.WriteFile(filepath.Join(dir, "audit.ndjson"), newest, 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, auditOf(t, a, AuditOptions{Tail: MaxAuditTail})); diff != "" {
		t.Errorf("with torn lines (-want +got):\n%s", diff)
	}

	if err := a.Audit(t.Context(), AuditOptions{Tail: MaxAuditTail + 1}, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("too many: %v, want ErrInvalid", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Audit(gone, AuditOptions{Tail: 1}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a reader who has gone: %v", err)
	}
}

// Long values chosen by a client are shortened, so that clients cannot fill the log.
func TestAuditShortened(t *testing.T) {
	a := open(t, Config{})
	a.Record(Entry{Action: "x", On: strings.Repeat("ü", 1<<20), Reason: strings.Repeat("r", 1<<20), Result: Refused})
	var got Entry
	if err := a.Audit(t.Context(), AuditOptions{Tail: 1}, func(e Entry) error { got = e; return nil }); err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("ü", 512) + "…"; got.On != want || len(got.Reason) > 1100 {
		t.Errorf("on has %d bytes, reason %d", len(got.On), len(got.Reason))
	}
}

// A follower gets each entry once, over rotations. A follower that does not read is disconnected.
func TestAuditFollow(t *testing.T) {
	a := open(t, Config{AuditBytes: 400, AuditFiles: 2})
	record := func(i int) { a.Record(Entry{Action: "x", On: fmt.Sprint(i), Result: Refused}) }
	record(0)
	heard, ended := make(chan string), make(chan error, 1)
	done := make(chan struct{})
	go func() {
		ended <- a.Audit(t.Context(), AuditOptions{Tail: 1, Follow: true, Done: done}, func(e Entry) error { heard <- e.On; return nil })
	}()
	for i := range 50 {
		if got := <-heard; got != fmt.Sprint(i) {
			t.Fatalf("heard of %s, want %d", got, i)
		}
		record(i + 1)
	}
	<-heard
	close(done)
	if err := <-ended; err != nil {
		t.Errorf("ended by its owner: %v", err)
	}

	// A follower is stuck in its first entry: the log continues, and the follower gets an error.
	begun, release := make(chan struct{}), make(chan struct{})
	n := 0
	go func() {
		ended <- a.Audit(t.Context(), AuditOptions{Tail: 1, Follow: true, Keep: func(e Entry) bool { return e.On != "other" }}, func(e Entry) error {
			if e.On == "other" {
				return errors.New("told of what it did not ask for")
			}
			if n++; n == 1 {
				close(begun)
				<-release
			}
			return nil
		})
	}()
	<-begun
	for range 2 * auditBacklog { // entries of another tenant fill no backlog
		a.Record(Entry{Action: "x", On: "other", Result: Refused})
	}
	for i := range auditBacklog + 1 {
		record(i)
	}
	close(release)
	if err := <-ended; !errors.Is(err, ErrBehind) || n != 1+auditBacklog {
		t.Errorf("a slow follower: %v after %d entries, want ErrBehind after %d", err, n, 1+auditBacklog)
	}

	// Close ends the other followers.
	go func() {
		ended <- a.Audit(t.Context(), AuditOptions{Tail: 1, Follow: true}, func(e Entry) error { heard <- e.On; return nil })
	}()
	<-heard
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("closed: %v", err)
	}
	if len(a.watches) != 0 {
		t.Errorf("%d are watching", len(a.watches))
	}
	if err := a.Audit(t.Context(), AuditOptions{Tail: 1}, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
