package access

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An access key's secret is derived from its token's text, is stored only sealed, and lives and
// ends with the token.
func TestAccessKey(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Config{Dir: dir})
	token, text, err := a.CreateToken(TokenOptions{Name: "ci", Tenant: "acme", Scopes: []Scope{Deploy}, Life: time.Hour, AccessKey: true})
	if err != nil {
		t.Fatal(err)
	}
	id, secret := AccessKey(text)
	if token.AccessKey != id || len(id) != 20 || len(secret) != 43 {
		t.Fatalf("access key %s (%s), its secret of %d characters", token.AccessKey, id, len(secret))
	}
	by := func(want string) func([]byte) bool { return func(s []byte) bool { return string(s) == want } }
	who, err := a.AuthenticateSigned(id, client, by(secret))
	if err != nil || who.Tenant != "acme" || !who.Has(Deploy) || who.Has(Admin) {
		t.Fatalf("signed: %+v, %v", who, err)
	}
	if _, err := a.AuthenticateSigned(id, client, by("other")); !errors.Is(err, ErrSignature) {
		t.Errorf("another's signature: %v", err)
	}
	plain, _, err := a.CreateToken(TokenOptions{Name: "plain", Tenant: "acme", Scopes: []Scope{Invoke}})
	if err != nil {
		t.Fatal(err)
	}
	for _, unknown := range []string{"", "FREA", accessKeyID(plain.ID), "AKIAIOSFODNN7EXAMPLE", strings.ToLower(id)} {
		if err := a.KnownAccessKey(unknown, netip.Addr{}); !errors.Is(err, ErrToken) {
			t.Errorf("%q is known: %v", unknown, err)
		}
	}
	if _, _, err := a.CreateToken(TokenOptions{Name: "all", Tenant: AllTenants, Scopes: []Scope{Invoke}, AccessKey: true}); !errors.Is(err, ErrInvalid) {
		t.Errorf("of all tenants: %v", err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "access.json"))
	if err != nil || strings.Contains(string(raw), secret) || strings.Contains(string(raw), text) {
		t.Errorf("access.json holds the secret, or %v", err)
	}

	// The sealing key may change, and the engine may restart.
	if err := a.RotateKey(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.AuthenticateSigned(id, client, by(secret)); err != nil {
		t.Errorf("after the key's rotation: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a = open(t, Config{Dir: dir})
	if _, err := a.AuthenticateSigned(id, client, by(secret)); err != nil {
		t.Errorf("after a start: %v", err)
	}

	// A rotated token has another access key; a removed token has none.
	next, nextText, err := a.RotateToken(token.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.AuthenticateSigned(id, client, by(secret)); !errors.Is(err, ErrExpired) {
		t.Errorf("the token that was replaced: %v", err)
	}
	nextID, nextSecret := AccessKey(nextText)
	if _, err := a.AuthenticateSigned(nextID, client, by(nextSecret)); err != nil || nextID == id {
		t.Errorf("the one in its place: %s, %v", nextID, err)
	}
	if err := a.RemoveToken(next.ID); err != nil {
		t.Fatal(err)
	}
	if err := a.KnownAccessKey(nextID, netip.Addr{}); !errors.Is(err, ErrToken) {
		t.Errorf("a token that was removed: %v", err)
	}

	// A client with too many failures is slowed down before a body is read.
	guesser := netip.MustParseAddr("192.0.2.99")
	var slow *SlowDownError
	for range failureBurst + 1 {
		err = a.KnownAccessKey("FREA0000000000000000", guesser)
	}
	if !errors.As(err, &slow) {
		t.Errorf("after %d failures: %v", failureBurst+1, err)
	}
}
