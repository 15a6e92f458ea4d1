package access

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testClock is the clock of an Access.
type testClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *testClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *testClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func newClock() *testClock { return &testClock{at: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)} }

func open(t *testing.T, cfg Config) *Access {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "access")
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	a, err := Open(cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return a
}

var client = netip.MustParseAddr("192.0.2.1")

func authenticate(t *testing.T, a *Access, token string) (Identity, error) {
	t.Helper()
	return a.Authenticate(t.Context(), "Bearer "+token, client)
}

func TestTokenLife(t *testing.T) {
	clock, dir := newClock(), t.TempDir()
	a := open(t, Config{Dir: dir, Now: clock.now})
	shown, text, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: "acme", Scopes: []Scope{Deploy, Invoke}, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	id, err := authenticate(t, a, text)
	want := Identity{Who: "token ci (" + shown.ID + ")", Tenant: "acme", Scopes: []Scope{Deploy, Invoke}}
	if err != nil || !cmp.Equal(id, want) {
		t.Fatalf("Authenticate = %+v, %v, want %+v", id, err, want)
	}
	if _, err := a.Authenticate(t.Context(), "Basic "+base64.StdEncoding.EncodeToString([]byte("fre:"+text)), client); err != nil {
		t.Errorf("as a password: %v", err)
	}
	if got := a.Tokens("acme")[0].LastUsed; !got.Equal(clock.now()) {
		t.Errorf("last used %v, want %v", got, clock.now())
	}
	clock.add(time.Hour - time.Second)
	if _, err := authenticate(t, a, text); err != nil {
		t.Errorf("a second before its end: %v", err)
	}
	clock.add(time.Second)
	if _, err := authenticate(t, a, text); !errors.Is(err, ErrExpired) || !errors.Is(err, ErrToken) {
		t.Errorf("at its end: %v, want ErrExpired", err)
	}
	entries := readAudit(t, filepath.Join(dir, "audit.ndjson"))
	if len(entries) != 1 || entries[0].Who != want.Who || entries[0].Tenant != "acme" || entries[0].Result != Refused || entries[0].Client != client {
		t.Errorf("in the audit log: %+v, want whose token has expired", entries)
	}
	if err := a.RemoveToken(shown.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := authenticate(t, a, text); !errors.Is(err, ErrToken) || errors.Is(err, ErrExpired) {
		t.Errorf("once removed: %v, want ErrToken", err)
	}
}

func TestTokenRefused(t *testing.T) {
	a := open(t, Config{})
	shown, text, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: "acme", Scopes: []Scope{Read}})
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("A", secretSize)
	for name, authorization := range map[string]string{
		"none": "", "scheme alone": "Bearer", "other scheme": "Digest " + text,
		"basic without a password": "Basic " + base64.StdEncoding.EncodeToString([]byte(text)),
		"basic that is no base64":  "Basic ???",
	} {
		if _, err := a.Authenticate(t.Context(), authorization, client); !errors.Is(err, ErrNoToken) {
			t.Errorf("%s: %v, want ErrNoToken", name, err)
		}
	}
	for name, token := range map[string]string{
		"wrong secret": tokenPrefix + shown.ID + "_" + other, "unknown id": tokenPrefix + strings.Repeat("0", idSize) + text[len(tokenPrefix)+idSize:],
		"short": text[:len(text)-1], "long": text + "A", "its hash": tokenPrefix + shown.ID + "_" + a.state.Load().Tokens[shown.ID].Hash[:secretSize],
		"three parts": "a.b.c", "a kilobyte": strings.Repeat("x", 1024),
	} {
		if _, err := authenticate(t, a, token); !errors.Is(err, ErrToken) {
			t.Errorf("%s: %v, want ErrToken", name, err)
		}
	}
}

func TestTokenRotation(t *testing.T) {
	clock := newClock()
	a := open(t, Config{Now: clock.now})
	old, oldText, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: AllTenants, Scopes: []Scope{Admin}, Life: 48 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	clock.add(24 * time.Hour)
	next, nextText, err := a.RotateToken(old.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if want := clock.now().Add(48 * time.Hour); !next.Expires.Equal(want) {
		t.Errorf("the new one expires %v, want %v", next.Expires, want)
	}
	if _, _, err := a.RotateToken(old.ID, time.Hour); !errors.Is(err, ErrExists) {
		t.Errorf("rotated again: %v, want ErrExists", err)
	}
	for _, text := range []string{oldText, nextText} {
		if _, err := authenticate(t, a, text); err != nil {
			t.Errorf("within the grace: %v", err)
		}
	}
	clock.add(time.Hour)
	if _, err := authenticate(t, a, oldText); !errors.Is(err, ErrExpired) {
		t.Errorf("the old one after the grace: %v, want ErrExpired", err)
	}
	if _, err := authenticate(t, a, nextText); err != nil {
		t.Errorf("the new one after the grace: %v", err)
	}
}

// After a restart no acknowledged record is lost. No token's text and no secret's value is on the
// disk.
func TestPersistence(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "access")
	a := open(t, Config{Dir: dir})
	if _, err := a.CreateTenant("acme", Quotas{Instances: 3}); err != nil {
		t.Fatal(err)
	}
	shown, text, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: "acme", Scopes: []Scope{Read}})
	if err != nil {
		t.Fatal(err)
	}
	const value = "sk_live_do-not-find-me"
	if err := a.PutSecret("acme", "stripe-key", []byte(value), Create); err != nil {
		t.Fatal(err)
	}
	if _, err := authenticate(t, a, text); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b := open(t, Config{Dir: dir})
	if diff := cmp.Diff(a.Tokens(AllTenants), b.Tokens(AllTenants)); diff != "" {
		t.Errorf("tokens (-before +after):\n%s", diff)
	}
	if got := b.Quotas("acme"); got.Instances != 3 {
		t.Errorf("quotas = %+v, want 3 instances", got)
	}
	if got, err := b.Secret("acme", "stripe-key"); err != nil || string(got) != value {
		t.Errorf("Secret = %q, %v, want %q", got, err, value)
	}
	if _, err := authenticate(t, b, text); err != nil {
		t.Errorf("the token: %v", err)
	}
	secret := text[len(tokenPrefix)+idSize+1:]
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v: others can reach it", path, info.Mode())
		}
		if d.IsDir() {
			return nil
		}
		raw, err := os.ReadFile(path)
		for what, s := range map[string]string{"the token's secret": secret, "the secret's value": value} {
			if bytes.Contains(raw, []byte(s)) {
				t.Errorf("%s holds %s", path, what)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if shown.ID == "" {
		t.Error("a token without an id")
	}
}

// Records that cannot be read refuse to open, and are not replaced by new records.
func TestDamaged(t *testing.T) {
	for name, content := range map[string]string{
		"cut": `{"tenants":{`, "no JSON": "x", "null token": `{"tokens":{"a":null}}`, "id of another": `{"tokens":{"a":{"id":"b"}}}`, "null tenant": `{"tenants":{"a":null}}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "access.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%s: Open has taken it", name)
		}
	}
}

func TestScopes(t *testing.T) {
	for _, c := range []struct {
		has  []Scope
		want map[Scope]bool
	}{
		{[]Scope{Admin}, map[Scope]bool{Deploy: true, Invoke: true, Read: true, Admin: true}},
		{[]Scope{Deploy}, map[Scope]bool{Deploy: true, Read: true}},
		{[]Scope{Invoke}, map[Scope]bool{Invoke: true}},
		{[]Scope{Read}, map[Scope]bool{Read: true}},
		{nil, map[Scope]bool{}},
	} {
		for _, s := range Scopes() {
			if err := (Identity{Scopes: c.has}).Need(s); (err == nil) != c.want[s] {
				t.Errorf("%v needs %s: %v, want allowed %v", c.has, s, err, c.want[s])
			}
		}
	}
}

// Failed authentications slow down their address, but not valid tokens from the same address, and
// not other addresses.
func TestBruteForce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "access")
	a := open(t, Config{Dir: dir})
	_, good, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: "acme", Scopes: []Scope{Read}})
	if err != nil {
		t.Fatal(err)
	}
	guess := func(from netip.Addr) error {
		_, err := a.Authenticate(t.Context(), "Bearer "+good[:len(good)-1]+"!", from)
		return err
	}
	var slow *SlowDownError
	for i := range failureBurst {
		if err := guess(client); !errors.Is(err, ErrToken) {
			t.Fatalf("failure %d: %v, want ErrToken", i, err)
		}
	}
	if err := guess(client); !errors.As(err, &slow) || slow.After <= 0 || slow.After > failureEvery {
		t.Fatalf("one more failure: %v, want a SlowDownError of at most %s", err, failureEvery)
	}
	if _, err := authenticate(t, a, "a.b.c"); !errors.As(err, &slow) {
		t.Errorf("what an issuer would have to be asked about: %v, want a SlowDownError", err)
	}
	if _, err := authenticate(t, a, good); err != nil {
		t.Errorf("a good token from that address: %v", err)
	}
	if err := guess(netip.MustParseAddr("192.0.2.2")); !errors.Is(err, ErrToken) {
		t.Errorf("from another address: %v, want ErrToken", err)
	}
	entries := readAudit(t, filepath.Join(dir, "audit.ndjson"))
	if len(entries) != failureBurst+1 {
		t.Errorf("%d failures are in the audit log, want %d", len(entries), failureBurst+1)
	}
}

func readAudit(t *testing.T, path string) (out []Entry) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("audit line %q: %v", line, err)
		}
		out = append(out, e)
	}
	return out
}

func TestAuditRotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "access")
	a := open(t, Config{Dir: dir, AuditBytes: 300, AuditFiles: 2})
	for range 12 {
		a.Record(Entry{Who: "root", Action: "POST /v1/functions", On: "hello", Result: Done, Status: 200})
	}
	files, err := filepath.Glob(filepath.Join(dir, "audit.ndjson*"))
	if err != nil || len(files) != 3 {
		t.Fatalf("files = %v, %v, want 3", files, err)
	}
	for _, f := range files {
		if len(readAudit(t, f)) == 0 {
			t.Errorf("%s is empty", f)
		}
		if info, err := os.Stat(f); err != nil || info.Size() > 300 {
			t.Errorf("%s has %d bytes, want 300 at most", f, info.Size())
		}
	}
}

// A line torn by a crash damages no other line.
func TestAuditTorn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.ndjson")
	if err := os.WriteFile(path, []byte(`{"action":"torn`), 0o600); err != nil {
		t.Fatal(err)
	}
	a := open(t, Config{Dir: dir})
	a.Record(Entry{Action: "whole", Result: Done})
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "\n")
	var e Entry
	if err := json.Unmarshal([]byte(rest), &e); err != nil || e.Action != "whole" {
		t.Errorf("after the torn line: %q, %v", rest, err)
	}
}

func TestEventQuota(t *testing.T) {
	a := open(t, Config{})
	if err := a.Event("nobody"); err != nil {
		t.Errorf("without a record: %v", err)
	}
	if _, err := a.CreateTenant("noisy", Quotas{EventsPerSecond: 5}); err != nil {
		t.Fatal(err)
	}
	served := 0
	var slow *SlowDownError
	for range 50 {
		err := a.Event("noisy")
		if err == nil {
			served++
		} else if !errors.As(err, &slow) || slow.After <= 0 {
			t.Fatalf("refused by %v, want a SlowDownError", err)
		}
	}
	if want := 5 * EventBurst; served < want || served > want+5 {
		t.Errorf("%d of 50 at once were served, want %d", served, want)
	}
	// Other changes of quotas do not refill the bucket.
	if _, err := a.SetQuotas("noisy", Quotas{EventsPerSecond: 5, Instances: 1}); err != nil {
		t.Fatal(err)
	}
	if err := a.Event("noisy"); !errors.As(err, &slow) {
		t.Errorf("after a change of other quotas: %v, want a SlowDownError", err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = a.Event("other") }); n != 0 {
		t.Errorf("an event takes %v allocations", n)
	}
}

func TestBucket(t *testing.T) {
	var b bucket
	const each, burst = time.Second, 3 * time.Second
	for i := range 3 {
		if wait := b.take(0, each, burst); wait != 0 {
			t.Fatalf("%d of the burst waits for %s", i, wait)
		}
	}
	if wait := b.take(0, each, burst); wait != time.Second {
		t.Errorf("after the burst: wait %s, want 1s", wait)
	}
	if left := b.left(500*time.Millisecond, each, burst); left != 500*time.Millisecond {
		t.Errorf("half a second later: %s left, want 500ms", left)
	}
	if wait := b.take(time.Second, each, burst); wait != 0 {
		t.Errorf("a second later: wait %s", wait)
	}
}

func TestAddresses(t *testing.T) {
	l := NewAddresses(Rate{Each: time.Hour, Burst: 1})
	for _, c := range []struct {
		address string
		free    bool
	}{
		{"192.0.2.1", true},
		{"::ffff:192.0.2.1", false},
		{"2001:db8::1", true},
		{"2001:db8::2", false}, // a /64 is one client
	} {
		if wait := l.Take(netip.MustParseAddr(c.address)); (wait == 0) != c.free {
			t.Errorf("%s: wait %s, want free %v", c.address, wait, c.free)
		}
	}
	var none Addresses
	if wait := none.Take(client); wait != 0 {
		t.Errorf("no limit: wait %s", wait)
	}
	if n := testing.AllocsPerRun(100, func() { l.Take(client) }); n != 0 {
		t.Errorf("Take allocates %v times", n)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	a, err := Open(Config{Dir: b.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	_, text, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: "acme", Scopes: []Scope{Invoke}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Authenticate(context.Background(), "Bearer "+text, client); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEvent(b *testing.B) {
	a, err := Open(Config{Dir: b.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	if _, err := a.CreateTenant("acme", Quotas{EventsPerSecond: 1e6}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			_ = a.Event("acme")
		}
	})
}

func FuzzAuthorization(f *testing.F) {
	a, err := Open(Config{Dir: f.TempDir(), Log: slog.New(slog.DiscardHandler), OIDC: []OIDC{{Issuer: "http://127.0.0.1:1", Audience: "fre", Tenant: "acme", Scopes: []Scope{Read}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = a.Close() })
	for _, s := range []string{"", "Bearer ", "Bearer fre_", "bearer fre_0000000000000000_" + strings.Repeat("A", secretSize), "Basic Zm9vOmJhcg==", "Bearer e30.eyJpc3MiOiJodHRwOi8vMTI3LjAuMC4xOjEifQ.e30"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, authorization string) {
		if id, err := a.Authenticate(t.Context(), authorization, netip.Addr{}); err == nil {
			t.Errorf("%q was let in as %+v", authorization, id)
		}
	})
}
