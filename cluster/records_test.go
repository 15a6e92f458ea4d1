package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fre-engine/fre/access"
)

// keeper is a node with the records of tenants.
type keeper struct {
	*node
	*access.Access
	w   *world
	dir string
}

const sharedKey = "0123456789abcdef 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"

// records opens the records in a directory, with a key of all nodes unless key is "".
func (w *world) records(dir, key string) *access.Access {
	w.t.Helper()
	cfg := access.Config{Dir: filepath.Join(dir, "access"), Log: slog.New(slog.NewTextHandler(w.t.Output(), nil))}
	if key != "" {
		cfg.SharedKeyFile = filepath.Join(dir, "shared.key")
		if err := os.WriteFile(cfg.SharedKeyFile, []byte(key), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	a, err := access.Open(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// keep joins a node with these records.
func (w *world) keep(name, dir string, a *access.Access) *keeper {
	w.t.Helper()
	cfg := w.config(name)
	cfg.Dir, cfg.Records = filepath.Join(dir, "cluster"), a
	n, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	a.Share(n.Rows(), name)
	w.t.Cleanup(func() {
		w.close(n)
		if err := a.Close(); err != nil {
			w.t.Error(err)
		}
	})
	if err := n.Join(w.t.Context(), w.engine(name)); err != nil {
		w.t.Fatal(err)
	}
	return &keeper{&node{Node: n}, a, w, dir}
}

func (w *world) keeper(name string) *keeper {
	w.t.Helper()
	dir := w.t.TempDir()
	return w.keep(name, dir, w.records(dir, sharedKey))
}

var from = netip.MustParseAddr("192.0.2.1")

func (k *keeper) letsIn(text string) bool {
	_, err := k.Authenticate(k.w.t.Context(), "Bearer "+text, from)
	return err == nil
}

// signs reports whether the access key of the token is valid on the node.
func (k *keeper) signs(text string) error {
	id, secret := access.AccessKey(text)
	_, err := k.AuthenticateSigned(id, from, func(got []byte) bool { return string(got) == secret })
	return err
}

// agree waits until a condition holds on all nodes.
func (w *world) agree(what string, all []*keeper, is func(*keeper) bool) {
	w.t.Helper()
	for _, k := range all {
		w.until(k.cfg.Name+": "+what, func() bool { return is(k) })
	}
}

func (w *world) token(k *keeper, tenant string) (access.Token, string) {
	w.t.Helper()
	t, text, err := k.CreateToken(access.TokenOptions{Name: "ci", Tenant: tenant, Scopes: []access.Scope{access.Invoke}, AccessKey: tenant != access.AllTenants})
	if err != nil {
		w.t.Fatal(err)
	}
	return t, text
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func secretIs(tenant, name, want string) func(*keeper) bool {
	return func(k *keeper) bool {
		got, err := k.Secret(tenant, name)
		return string(got) == want && (err == nil || want == "" && errors.Is(err, fs.ErrNotExist))
	}
}

// A tenant, quota, token, access key or secret made on one node holds on all nodes, including later
// nodes. A removed record holds nowhere, not even on a node that was away.
func TestRecordsEverywhere(t *testing.T) {
	w := newWorld(t)
	a, b := w.keeper("a"), w.keeper("b")
	two := []*keeper{a, b}
	_, err := a.CreateTenant("acme", access.Quotas{Instances: 3})
	must(t, err)
	ci, text := w.token(b, "acme")
	admin, adminText := w.token(a, access.AllTenants)
	must(t, a.PutSecret("acme", "key.one_", []byte("one"), access.Create))
	w.agree("the tenant's quota", two, func(k *keeper) bool { return k.Quotas("acme").Instances == 3 })
	w.agree("the tokens are good", two, func(k *keeper) bool { return k.letsIn(text) && k.letsIn(adminText) })
	w.agree("the access key is good", two, func(k *keeper) bool { return k.signs(text) == nil })
	w.agree("the secret opens", two, secretIs("acme", "key.one_", "one"))
	// Each change starts from the newest records, so no wait is needed.
	if _, err := b.CreateTenant("acme", access.Quotas{}); !errors.Is(err, access.ErrExists) {
		t.Errorf("a tenant that another node has made: %v", err)
	}
	must(t, b.PutSecret("acme", "key.one_", []byte("two"), access.Update))
	_, err = a.SetQuotas("acme", access.Quotas{Instances: 4})
	must(t, err)

	away := w.keeper("c")
	three := []*keeper{a, b, away}
	w.agree("all of it", three, func(k *keeper) bool {
		return k.Quotas("acme").Instances == 4 && k.letsIn(text) && k.letsIn(adminText) && k.signs(text) == nil && secretIs("acme", "key.one_", "two")(k)
	})
	dir := away.dir
	w.close(away.Node)
	must(t, away.Close())

	next, nextText, err := a.RotateToken(ci.ID, time.Hour)
	must(t, err)
	must(t, b.RemoveToken(admin.ID))
	must(t, b.RemoveToken(ci.ID))
	must(t, a.RemoveSecret("acme", "key.one_"))
	w.agree("what was taken back", two, func(k *keeper) bool {
		return !k.letsIn(text) && k.signs(text) != nil && !k.letsIn(adminText) && k.letsIn(nextText) && k.signs(nextText) == nil && secretIs("acme", "key.one_", "")(k)
	})
	// Join returns after the records were read: a removed record is never valid.
	again := w.keep("c", dir, w.records(dir, sharedKey))
	if again.letsIn(text) || again.letsIn(adminText) || again.signs(text) == nil || !again.letsIn(nextText) || !secretIs("acme", "key.one_", "")(again) {
		t.Error("a node that was away goes by what was taken back meanwhile")
	}
	must(t, again.RemoveTenant("acme"))
	w.agree("the tenant is gone", []*keeper{a, b, again}, func(k *keeper) bool {
		_, err := k.Tenant("acme")
		return errors.Is(err, fs.ErrNotExist) && !k.letsIn(nextText) && len(k.Tokens(access.AllTenants)) == 0
	})
	if err := b.RemoveToken(next.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a token of a tenant that is gone: %v", err)
	}
}

// If two nodes change the same record at the same time, one change wins and the losing node gets an
// error. Compatible changes both hold. In the end all nodes have the same records.
func TestRecordsAtOnce(t *testing.T) {
	w := newWorld(t)
	nodes := []*keeper{w.keeper("a"), w.keeper("b")}
	both := func(do func(i int, k *keeper) error) (errs [2]error) {
		var all sync.WaitGroup
		for i, k := range nodes {
			all.Go(func() { errs[i] = do(i, k) })
		}
		all.Wait()
		return errs
	}
	for round := range 10 {
		tenant := fmt.Sprintf("t%d", round)
		errs := both(func(_ int, k *keeper) error { _, err := k.CreateTenant(tenant, access.Quotas{}); return err })
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs[:]...), access.ErrExists) {
			t.Fatalf("one tenant made twice: %v", errs)
		}
		var texts [2]string
		errs = both(func(i int, k *keeper) (err error) {
			_, texts[i], err = k.CreateToken(access.TokenOptions{Name: "ci", Tenant: tenant, Scopes: []access.Scope{access.Read}})
			return err
		})
		if errs != [2]error{} {
			t.Fatalf("two tokens of one tenant: %v", errs)
		}
		w.agree("both tokens are good", nodes, func(k *keeper) bool { return k.letsIn(texts[0]) && k.letsIn(texts[1]) })
		ci := nodes[0].Tokens(tenant)[0]
		errs = both(func(_ int, k *keeper) error { _, _, err := k.RotateToken(ci.ID, 0); return err })
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs[:]...), access.ErrExists) {
			t.Fatalf("one token rotated twice: %v", errs)
		}
		errs = both(func(i int, k *keeper) error {
			_, err := k.SetQuotas(tenant, access.Quotas{Instances: int64(10 + i)})
			return err
		})
		for i, err := range errs {
			if err != nil && (!errors.Is(err, access.ErrChanged) || errs[1-i] != nil) {
				t.Fatalf("quotas set twice: %v", errs)
			}
		}
		w.until("both have the same quotas", func() bool { return nodes[0].Quotas(tenant) == nodes[1].Quotas(tenant) })
		if got := nodes[0].Quotas(tenant).Instances; got != 10 && got != 11 || errs[1] != nil && got != 10 || errs[0] != nil && got != 11 {
			t.Errorf("quotas %d, errors %v", got, errs)
		}
		errs = both(func(i int, k *keeper) error {
			return k.PutSecret(tenant, "s", []byte{byte('0' + i)}, access.Create)
		})
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs[:]...), access.ErrExists) {
			t.Fatalf("one secret made twice: %v", errs)
		}
		won := slices.Index(errs[:], nil)
		w.agree("the secret of who was told that it is", nodes, secretIs(tenant, "s", fmt.Sprint(won)))
	}
}

// A joining node shares earlier records with all nodes. If the table has a record, or has removed a
// record, the table wins.
func TestRecordsOfBefore(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	before := w.records(dir, sharedKey)
	mine := func(tenant string) string {
		_, text, err := before.CreateToken(access.TokenOptions{Name: "mine", Tenant: tenant, Scopes: []access.Scope{access.Read}, AccessKey: true})
		must(t, err)
		return text
	}
	for _, tenant := range []string{"both", "gone", "mine"} {
		_, err := before.CreateTenant(tenant, access.Quotas{Instances: 1})
		must(t, err)
		must(t, before.PutSecret(tenant, "s", []byte("mine"), access.Create))
	}
	both, gone, alone := mine("both"), mine("gone"), mine("mine")

	b := w.keeper("b")
	for _, tenant := range []string{"both", "gone"} {
		_, err := b.CreateTenant(tenant, access.Quotas{Instances: 2})
		must(t, err)
		must(t, b.PutSecret(tenant, "s", []byte("theirs"), access.Create))
	}
	_, theirs := w.token(b, "both")
	must(t, b.RemoveTenant("gone"))

	a := w.keep("a", dir, before)
	w.agree("both have what either had", []*keeper{a, b}, func(k *keeper) bool {
		return k.Quotas("both").Instances == 2 && k.Quotas("mine").Instances == 1 && k.letsIn(both) && k.letsIn(theirs) && k.letsIn(alone) &&
			k.signs(alone) == nil && k.signs(theirs) == nil && secretIs("both", "s", "theirs")(k) && secretIs("mine", "s", "mine")(k)
	})
	w.agree("what the table has had is gone", []*keeper{a, b}, func(k *keeper) bool {
		_, err := k.Tenant("gone")
		return err != nil && !k.letsIn(gone) && secretIs("gone", "s", "")(k)
	})
}

// A partitioned node uses its records and refuses changes with the reason. After the partition the
// node has the changes of the meantime. A node that starts partitioned does the same.
func TestRecordsPartition(t *testing.T) {
	w := newWorld(t)
	a, b := w.keeper("a"), w.keeper("b")
	_, text := w.token(a, "acme")
	must(t, a.PutSecret("acme", "s", []byte("one"), access.Create))
	w.agree("it is there", []*keeper{b}, func(k *keeper) bool { return k.letsIn(text) && secretIs("acme", "s", "one")(k) })
	w.stopNATS()
	w.until("both are cut off", func() bool { return a.partitioned() && b.partitioned() })
	refused := func(k *keeper) {
		t.Helper()
		_, errTenant := k.CreateTenant("new", access.Quotas{})
		_, _, errToken := k.CreateToken(access.TokenOptions{Name: "x", Tenant: "acme", Scopes: []access.Scope{access.Read}})
		for what, err := range map[string]error{
			"tenant": errTenant, "token": errToken, "revocation": k.RemoveToken(k.Tokens("acme")[0].ID),
			"secret": k.PutSecret("acme", "s", []byte("two"), access.Update), "removal": k.RemoveSecret("acme", "s"),
		} {
			if !errors.Is(err, ErrPartitioned) {
				t.Errorf("%s at a node that is cut off: %v", what, err)
			}
		}
		if !k.letsIn(text) || !secretIs("acme", "s", "one")(k) || len(k.Tokens("acme")) != 1 {
			t.Errorf("%s does not go by what it has", k.cfg.Name)
		}
	}
	refused(b)
	dir := b.dir
	w.close(b.Node)
	must(t, b.Close())
	again := w.keep("b", dir, w.records(dir, sharedKey))
	refused(again)
	w.startNATS()
	w.until("a is back", func() bool { return a.reachable() == nil })
	must(t, a.RemoveToken(a.Tokens("acme")[0].ID))
	must(t, a.PutSecret("acme", "s", []byte("two"), access.Update))
	w.agree("what was changed meanwhile", []*keeper{a, again}, func(k *keeper) bool { return !k.letsIn(text) && secretIs("acme", "s", "two")(k) })
}

// Without a shared key, secrets and access keys are valid only on the node of their creation, with
// a notice. A node with a different key loses no secrets of its peers.
func TestRecordsWithoutKey(t *testing.T) {
	w := newWorld(t)
	dirs := []string{t.TempDir(), t.TempDir()}
	a, b := w.keep("a", dirs[0], w.records(dirs[0], "")), w.keep("b", dirs[1], w.records(dirs[1], ""))
	_, text := w.token(a, "acme")
	must(t, a.PutSecret("acme", "s", []byte("one"), access.Create))
	w.agree("the token is good", []*keeper{a, b}, func(k *keeper) bool { return k.letsIn(text) })
	if err := errors.Join(a.signs(text), a.RotateKey(), a.signs(text)); err != nil {
		t.Errorf("the access key where it was made: %v", err)
	}
	if err := b.signs(text); !errors.Is(err, access.ErrUnavailable) || !strings.Contains(err.Error(), "cluster.key_file") {
		t.Errorf("the access key elsewhere: %v", err)
	}
	if list, err := a.Secrets("acme"); err != nil || len(list) != 1 || list[0].Node != "a" {
		t.Errorf("secrets of a: %+v, %v", list, err)
	}
	if !secretIs("acme", "s", "")(b) {
		t.Error("a secret went over without a key")
	}
	for _, k := range []*keeper{a, b} {
		w.close(k.Node)
		must(t, k.Close())
	}
	// The operator sets a shared key: the records of one node become valid on all.
	a, b = w.keep("a", dirs[0], w.records(dirs[0], sharedKey)), w.keep("b", dirs[1], w.records(dirs[1], sharedKey))
	w.agree("they are all nodes'", []*keeper{a, b}, func(k *keeper) bool {
		list, err := k.Secrets("acme")
		return err == nil && len(list) == 1 && list[0].Node == "" && k.signs(text) == nil && secretIs("acme", "s", "one")(k)
	})
	other := strings.Repeat("f", 16) + sharedKey[16:]
	dir := t.TempDir()
	c := w.keep("c", dir, w.records(dir, other))
	if err := c.PutSecret("acme", "s", []byte("three"), access.Create); !errors.Is(err, access.ErrChanged) {
		t.Errorf("a secret that the others have, with another key: %v", err)
	}
	if !c.letsIn(text) || !secretIs("acme", "s", "one")(b) {
		t.Error("a node with another key takes something from the others")
	}
}

// TestMain: TestMain runs a node that rotates tokens until a test kills the process.
func TestMain(m *testing.M) {
	if url := os.Getenv("FRE_TEST_ROTATE"); url != "" {
		fmt.Println(rotate(url, os.Getenv("FRE_TEST_DIR")))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// rotate is this node; it prints a line for each created token.
func rotate(url, dir string) error {
	conn, err := nats.Connect(url, nats.Timeout(within))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	a, err := access.Open(access.Config{Dir: filepath.Join(dir, "access"), Log: log})
	if err != nil {
		return err
	}
	n, err := New(Config{Name: "killed", Registry: "registry.example.org/fre", Dir: filepath.Join(dir, "cluster"), Conn: conn, Log: log, TTL: ttl, Records: a})
	if err != nil {
		return err
	}
	a.Share(n.Rows(), "killed")
	w := world{}
	if err := n.Join(n.live, w.engine("killed")); err != nil {
		return err
	}
	for {
		t, text, err := a.CreateToken(access.TokenOptions{Name: "ci", Tenant: "acme", Scopes: []access.Scope{access.Read}})
		for err == nil && len(a.Tokens("acme")) < 40 {
			fmt.Println(t.ID, text)
			t, text, err = a.RotateToken(t.ID, time.Hour)
		}
		if err == nil {
			err = a.RemoveTenant("acme") // many records in one change
		}
		if err != nil {
			return err
		}
	}
}

// A node killed during a change leaves the change complete or undone, on its disk and on all nodes:
// no token is replaced by a missing token, and no new token exists without its record.
func TestRecordsKilled(t *testing.T) {
	w := newWorld(t)
	b := w.keeper("b")
	for round := range 4 {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "FRE_TEST_ROTATE="+w.nats.ClientURL(), "FRE_TEST_DIR="+dir)
		cmd.Stderr = t.Output()
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for range 30 + 17*round {
			if !lines.Scan() {
				t.Fatal("it has ended by itself")
			}
			if len(strings.Fields(lines.Text())) != 2 {
				t.Fatal(lines.Text())
			}
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // the process was killed
		whole := func(where string, all []access.Token) {
			t.Helper()
			replaced := map[string]bool{}
			for _, token := range all {
				if token.Replaced != "" {
					replaced[token.Replaced] = true
				}
			}
			begun := 0
			for _, token := range all {
				if !replaced[token.ID] {
					begun++
				}
				delete(replaced, token.ID)
			}
			if len(replaced) > 0 || begun > 1 || begun == 0 && len(all) > 0 {
				t.Errorf("round %d, %s: %d tokens, %d that replace nothing, %d that are not there", round, where, len(all), begun, len(replaced))
			}
		}
		must(t, b.Rows().Ready(t.Context()))
		whole("the other node", b.Tokens("acme"))
		raw, err := os.ReadFile(filepath.Join(dir, "access", "access.json"))
		must(t, err)
		var disk struct{ Tokens map[string]access.Token }
		must(t, json.Unmarshal(raw, &disk))
		var all []access.Token
		for _, token := range disk.Tokens {
			all = append(all, token)
		}
		whole("its own disk", all)
		a := w.keep("killed", dir, w.records(dir, ""))
		if got, want := a.Tokens("acme"), b.Tokens("acme"); len(got) != len(want) {
			t.Errorf("round %d: it has %d tokens once more, the other %d", round, len(got), len(want))
		}
		w.close(a.Node)
		if err := b.RemoveTenant("acme"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}
