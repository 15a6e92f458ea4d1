package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// table is a Table in memory.
type table struct {
	mu     sync.Mutex
	last   uint64
	rows   map[string]row
	nodes  []*Access // in the order of joining
	refuse error
}

type row struct {
	value    []byte
	revision uint64
}

func (t *table) Ready(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refuse
}

func (t *table) Write(_ context.Context, key string, value []byte, revision uint64) (uint64, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[key].revision != revision {
		return 0, false, nil
	}
	t.last++
	t.rows[key] = row{value, t.last}
	for _, a := range t.nodes {
		a.Take(key, value, t.last)
	}
	return t.last, true, nil
}

// join makes a node read all rows and contribute its own.
func (t *table) join(tb testing.TB, a *Access, name string) {
	tb.Helper()
	a.Share(t, name)
	t.mu.Lock()
	for key, r := range t.rows {
		a.Take(key, r.value, r.revision)
	}
	t.nodes = append(t.nodes, a)
	t.mu.Unlock()
	if err := a.Contribute(tb.Context()); err != nil {
		tb.Error(err)
	}
}

func (t *table) leave(a *Access) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes = slices.DeleteFunc(t.nodes, func(n *Access) bool { return n == a })
}

const (
	oneKey = "0123456789abcdef 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"
	twoKey = "fedcba9876543210 ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100\n"
)

func keyFile(t *testing.T, keys string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shared.key")
	if err := os.WriteFile(path, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func token(t *testing.T, a *Access, tenant string) (id, text string) {
	t.Helper()
	shown, text, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: tenant, Scopes: []Scope{Read}, AccessKey: tenant != AllTenants})
	if err != nil {
		t.Fatal(err)
	}
	return shown.ID, text
}

// A node that returns after an absence does not bring back removed records, and its disk gets the
// new records. An empty table gets the node's records.
func TestShareAway(t *testing.T) {
	tab := &table{rows: map[string]row{}}
	dir := t.TempDir()
	a, b := open(t, Config{}), open(t, Config{Dir: dir})
	tab.join(t, a, "a")
	tab.join(t, b, "b")
	id, text := token(t, a, "acme")
	kept, keptText := token(t, a, "acme")
	tab.leave(b)
	if err := a.RemoveToken(id); err != nil {
		t.Fatal(err)
	}
	again := open(t, Config{Dir: dir})
	if _, err := authenticate(t, again, text); err != nil {
		t.Errorf("before it is told it goes by its copy: %v", err)
	}
	tab.join(t, again, "b")
	if _, err := authenticate(t, again, text); !errors.Is(err, ErrToken) {
		t.Errorf("what was removed meanwhile: %v", err)
	}
	if got := again.Tokens("acme"); len(got) != 1 || got[0].ID != kept || len(a.Tokens("acme")) != 1 {
		t.Errorf("tokens %+v, want %s", got, kept)
	}
	if onDisk := open(t, Config{Dir: dir}).Tokens("acme"); len(onDisk) != 1 || onDisk[0].ID != kept {
		t.Errorf("on its disk: %+v, want %s", onDisk, kept)
	}
	wiped := &table{rows: map[string]row{}}
	wiped.join(t, open(t, Config{Dir: dir}), "b")
	other := open(t, Config{})
	wiped.join(t, other, "c")
	if _, err := authenticate(t, other, keptText); err != nil {
		t.Errorf("an empty table: %v", err)
	}
}

// A change that the table refuses does not happen, and a row of another node is not overwritten.
func TestShareRefused(t *testing.T) {
	tab := &table{rows: map[string]row{}}
	a := open(t, Config{SharedKeyFile: keyFile(t, oneKey)})
	tab.join(t, a, "a")
	id, text := token(t, a, "acme")
	tab.refuse = errors.New("cut off")
	_, createErr := a.CreateTenant("new", Quotas{})
	for what, err := range map[string]error{
		"tenant": createErr, "removal": a.RemoveToken(id), "secret": a.PutSecret("acme", "s", []byte("x"), Create), "tenant's removal": a.RemoveTenant("acme"),
	} {
		if !errors.Is(err, tab.refuse) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := authenticate(t, a, text); err != nil || len(a.Tenants()) != 0 {
		t.Errorf("what was refused is done: %v", err)
	}
	tab.refuse = nil
	// A row of a later version, unknown to this version.
	tab.mu.Lock()
	tab.last++
	later := []byte(`{"protocol":9,"node":"z","tenant":"acme"}`)
	tab.rows["tenant.acme"] = row{later, tab.last}
	a.Take("tenant.acme", later, tab.last)
	tab.mu.Unlock()
	if err := a.RemoveToken(id); !errors.Is(err, ErrChanged) {
		t.Errorf("a change of what is not understood: %v", err)
	}
	if !bytes.Equal(tab.rows["tenant.acme"].value, later) {
		t.Error("it is written over")
	}
}

// A change in the table is in force even if this node's disk refuses the change; the error says so.
func TestShareDisk(t *testing.T) {
	tab := &table{rows: map[string]row{}}
	dir := t.TempDir()
	a := open(t, Config{Dir: dir})
	tab.join(t, a, "a")
	id, text := token(t, a, "acme")
	path := filepath.Join(dir, "access.json")
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := a.RemoveToken(id); err == nil || !strings.Contains(err.Error(), "in force on all nodes") {
		t.Errorf("a disk that refuses: %v", err)
	}
	if _, err := authenticate(t, a, text); !errors.Is(err, ErrToken) {
		t.Errorf("a token that was removed: %v", err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := a.Contribute(t.Context()); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || bytes.Contains(raw, []byte(id)) {
		t.Errorf("once it can be written: %s, %v", raw, err)
	}
}

// Quotas set on an outdated state are refused: a node never overwrites an unseen change.
func TestShareQuotas(t *testing.T) {
	tab := &table{rows: map[string]row{}}
	a, b := open(t, Config{}), open(t, Config{})
	tab.join(t, a, "a")
	tab.join(t, b, "b")
	if _, err := a.CreateTenant("acme", Quotas{Instances: 1}); err != nil {
		t.Fatal(err)
	}
	tab.leave(b) // the node does not get the next change
	if _, err := a.SetQuotas("acme", Quotas{Instances: 2}); err != nil {
		t.Fatal(err)
	}
	slow := &slowTable{table: tab, node: b}
	b.Share(slow, "b")
	if _, err := b.SetQuotas("acme", Quotas{Instances: 3}); !errors.Is(err, ErrChanged) {
		t.Errorf("quotas that another has set meanwhile: %v", err)
	}
	if got := a.Quotas("acme").Instances; got != 2 {
		t.Errorf("they are %d, want 2", got)
	}
}

// slowTable delivers rows of other nodes only after a first write has failed.
type slowTable struct {
	*table
	node *Access
}

func (s *slowTable) Write(ctx context.Context, key string, value []byte, revision uint64) (uint64, bool, error) {
	now, won, err := s.table.Write(ctx, key, value, revision)
	if !won {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.node.Take(key, s.rows[key].value, s.rows[key].revision)
	}
	return now, won, err
}

// A new cluster key goes first in the key file. Each node seals its secrets again, and the old key
// is then unnecessary.
func TestSharedKeyRotation(t *testing.T) {
	tab := &table{rows: map[string]row{}}
	a, dir := open(t, Config{SharedKeyFile: keyFile(t, oneKey)}), t.TempDir()
	tab.join(t, a, "a")
	_, text := token(t, a, "acme")
	for _, name := range []string{"s", "a..b_"} {
		if err := a.PutSecret("acme", name, []byte("value"), Create); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.RotateKey(); err != nil {
		t.Errorf("the node's own key: %v", err)
	}
	both := open(t, Config{Dir: dir, SharedKeyFile: keyFile(t, twoKey+oneKey)})
	tab.join(t, both, "b")
	last := open(t, Config{SharedKeyFile: keyFile(t, twoKey)})
	tab.join(t, last, "c")
	for _, n := range []*Access{both, last} {
		for _, name := range []string{"s", "a..b_"} {
			if got, err := n.Secret("acme", name); string(got) != "value" {
				t.Errorf("%s at %s: %q, %v", name, n.node, got, err)
			}
		}
		id, secret := AccessKey(text)
		if _, err := n.AuthenticateSigned(id, client, func(got []byte) bool { return string(got) == secret }); err != nil {
			t.Errorf("access key at %s: %v", n.node, err)
		}
	}
	// Outside the cluster the node makes a key of its own.
	if err := last.RemoveSecret("acme", "s"); err != nil {
		t.Error(err)
	}
	if _, err := both.Secret("acme", "s"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a secret that was removed: %v", err)
	}
	own := filepath.Join(dir, "secrets.key")
	raw, err := os.ReadFile(own)
	if err == nil {
		err = os.WriteFile(own, append(raw, twoKey...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	alone := open(t, Config{Dir: dir})
	if got, err := alone.Secret("acme", "a..b_"); string(got) != "value" {
		t.Errorf("alone again: %q, %v", got, err)
	}
}

// A shared row has no time of a token's use, no value that only one node can open, no token's text
// and no secret's value.
func TestShareRow(t *testing.T) {
	tab := &table{rows: map[string]row{}}
	a := open(t, Config{})
	tab.join(t, a, "a")
	_, text := token(t, a, "acme")
	if _, err := authenticate(t, a, text); err != nil {
		t.Fatal(err)
	}
	if _, err := a.SetQuotas("acme", Quotas{Images: 7}); err != nil {
		t.Fatal(err)
	}
	got := string(tab.rows["tenant.acme"].value)
	_, signing := AccessKey(text)
	for _, not := range []string{text[len(tokenPrefix)+idSize+1:], signing, "signing", "last_used"} {
		if strings.Contains(got, not) {
			t.Errorf("%q is in the row: %s", not, got)
		}
	}
	if !strings.Contains(got, `"images":7`) {
		t.Errorf("row %s", got)
	}
}

// A node without the cluster's key passes on rows without opening them, and rotates its own key.
func TestShareKeyless(t *testing.T) {
	tab := &table{rows: map[string]row{}}
	a, b := open(t, Config{SharedKeyFile: keyFile(t, oneKey)}), open(t, Config{})
	tab.join(t, a, "a")
	tab.join(t, b, "b")
	id, text := token(t, a, "acme")
	signs := func(n *Access, text string) error {
		id, secret := AccessKey(text)
		_, err := n.AuthenticateSigned(id, client, func(got []byte) bool { return string(got) == secret })
		return err
	}
	if err := signs(b, text); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without the key: %v", err)
	}
	if _, err := b.SetQuotas("acme", Quotas{Images: 1}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.RotateKey(), b.PutSecret("acme", "s", []byte("own"), Create), a.PutSecret("acme", "s", []byte("all"), Create)); err != nil {
		t.Error(err)
	}
	late := open(t, Config{SharedKeyFile: keyFile(t, oneKey)})
	tab.join(t, late, "c")
	if err := signs(late, text); err != nil {
		t.Errorf("after a change by a node without the key: %v", err)
	}
	if got, err := b.Secret("acme", "s"); string(got) != "own" {
		t.Errorf("its own secret: %q, %v", got, err)
	}
	next, nextText, err := b.RotateToken(id, 0)
	if err != nil || next.AccessKey == "" || signs(b, nextText) != nil {
		t.Errorf("rotated there: %+v, %v, %v", next, err, signs(b, nextText))
	}
	if err := signs(late, nextText); !errors.Is(err, ErrUnavailable) {
		t.Errorf("what it has sealed itself: %v", err)
	}
}

// A row of another node is refused or understood. It affects only its own tenant, and the resulting
// records can be written and read again.
func FuzzShare(f *testing.F) {
	hash := strings.Repeat("0a", 32)
	for key, raw := range map[string]string{
		"tenant.acme":      `{"protocol":1,"node":"b","tenant":"acme","record":{"created":"2026-05-01T12:00:00Z","quotas":{"instances":3}},"tokens":[{"id":"00112233445566aa","name":"ci","tenant":"acme","scopes":["read"],"created":"2026-05-01T12:00:00Z","hash":"` + hash + `"}]}`,
		"tenants":          `{"protocol":1,"node":"b","tenant":"*","tokens":[{"id":"00112233445566aa","tenant":"*","hash":"` + hash + `"}]}`,
		"tenant.x":         `{"protocol":1,"tenant":"x","removed":true}`,
		"tenant.other":     `{"protocol":1,"tenant":"other","tokens":[{"id":"0000000000000000","tenant":"other","hash":"` + hash + `"}]}`,
		"secret.acme.cw":   `{"protocol":1,"node":"b","tenant":"acme","name":"s","removed":true}`,
		"secret.acme.Li4":  `{"protocol":1,"node":"b","tenant":"acme","name":"..","sealed":"AA=="}`,
		"secret.acme.cwAA": `null`, "": `[]`,
	} {
		f.Add(key, []byte(raw))
	}
	mine := strings.Repeat("f", idSize)
	f.Fuzz(func(t *testing.T, key string, raw []byte) {
		a := &Access{secrets: "/nowhere/secrets", cfg: Config{Dir: "/nowhere", Log: slog.New(slog.DiscardHandler)}} // no write before Contribute
		a.state.Store(&state{
			Tenants: map[string]*Tenant{"mine": {Name: "mine", Shared: true, events: new(bucket)}},
			Tokens:  map[string]*record{mine: {Token: Token{ID: mine, Tenant: "mine"}, Hash: hash, Shared: true, used: new(atomic.Int64)}},
			rows:    map[string]uint64{},
		})
		a.Take(key, raw, 1)
		if s := a.state.Load(); key != rowKey("mine") && (s.Tokens[mine] == nil || s.Tokens[mine].Tenant != "mine" || s.Tenants["mine"] == nil) {
			t.Errorf("a row %q takes what is another tenant's", key)
		}
		for _, token := range a.Tokens(AllTenants) {
			if rowKey(token.Tenant) != key && token.ID != mine {
				t.Errorf("a row %q makes a token of %q", key, token.Tenant)
			}
		}
		if r, err := decodeTenant(key, raw); err == nil {
			again, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decodeTenant(key, again); err != nil {
				t.Errorf("%s is taken, and not once more: %v", raw, err)
			}
		}
		if r, err := decodeSecret(key, raw); err == nil && filepath.Dir(a.secrets.pathOf(r.Tenant, r.Name)) != "/nowhere/secrets/"+r.Tenant {
			t.Errorf("a secret that lies at %s", a.secrets.pathOf(r.Tenant, r.Name))
		}
	})
}
