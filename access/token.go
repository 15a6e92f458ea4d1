package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// TokenOptions describe a new token.
type TokenOptions struct {
	Name   string
	Tenant string // AllTenants for all
	Scopes []Scope
	Life   time.Duration // 0: never expires

	AccessKey bool // with an access key: see [AccessKey]
}

// describes reports whether a name can describe a token's holder.
func describes(name string) bool {
	return name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func (o TokenOptions) check() error {
	if o.Tenant != AllTenants {
		if err := checkTenant(o.Tenant); err != nil {
			return err
		}
	}
	switch {
	case !describes(o.Name):
		return fmt.Errorf("%q is %w of a token: describe the holder in a few words", o.Name, ErrName)
	case o.AccessKey && o.Tenant == AllTenants:
		return fmt.Errorf("an access key for all tenants is %w: signed requests name no tenant", ErrInvalid)
	case len(o.Scopes) == 0:
		return fmt.Errorf("a token without scopes is %w: name scopes", ErrInvalid)
	case o.Life < 0:
		return fmt.Errorf("a lifetime of %s is %w", o.Life, ErrInvalid)
	}
	for _, s := range o.Scopes {
		if !slices.Contains(Scopes(), s) {
			return fmt.Errorf("scope %q is %w: deploy, invoke, read or admin", s, ErrName)
		}
	}
	return nil
}

// CreateToken creates a token and returns its text, which cannot be read again later.
func (a *Access) CreateToken(o TokenOptions) (Token, string, error) {
	if err := o.check(); err != nil {
		return Token{}, "", err
	}
	t, text := a.newToken(o)
	err := a.change(func(s *state) error {
		if o.AccessKey {
			a.giveKeyLocked(t, text)
		}
		s.Tokens[t.ID] = t
		return nil
	})
	return t.shown(), text, err
}

func (a *Access) newToken(o TokenOptions) (*record, string) {
	var id [idSize / 2]byte
	var secret [32]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	_, _ = rand.Read(secret[:])
	text := base64.RawURLEncoding.EncodeToString(secret[:])
	hash := sha256.Sum256([]byte(text))
	t := &record{
		Token: Token{ID: hex.EncodeToString(id[:]), Name: o.Name, Tenant: o.Tenant, Scopes: slices.Clone(o.Scopes), Created: a.seconds()},
		Hash:  hex.EncodeToString(hash[:]), used: new(atomic.Int64),
	}
	if o.Life > 0 {
		t.Expires = t.Created.Add(o.Life)
	}
	return t, tokenPrefix + t.ID + "_" + text
}

// RotateToken creates a token with the name, tenant, scopes and lifetime of an old one. The old
// token stays valid for the grace. fs.ErrNotExist for an unknown id, ErrExists if already replaced.
func (a *Access) RotateToken(id string, grace time.Duration) (Token, string, error) {
	if grace < 0 {
		return Token{}, "", fmt.Errorf("a grace of %s is %w", grace, ErrInvalid)
	}
	var t *record
	var text string
	err := a.change(func(s *state) error {
		old := s.Tokens[id]
		if old == nil {
			return fmt.Errorf("token %q: %w", id, fs.ErrNotExist)
		}
		if old.Replaced != "" {
			return fmt.Errorf("a successor of token %s %w: %s", id, ErrExists, old.Replaced)
		}
		o := TokenOptions{Name: old.Name, Tenant: old.Tenant, Scopes: old.Scopes}
		if !old.Expires.IsZero() {
			o.Life = old.Expires.Sub(old.Created)
		}
		t, text = a.newToken(o)
		if old.AccessKey != "" {
			a.giveKeyLocked(t, text)
		}
		leaving := *old
		leaving.Replaced = t.ID
		if end := a.seconds().Add(grace); old.Expires.IsZero() || end.Before(old.Expires) {
			leaving.Expires = end
		}
		s.Tokens[id], s.Tokens[t.ID] = &leaving, t
		return nil
	})
	if err != nil {
		return Token{}, "", err
	}
	return t.shown(), text, nil
}

// RemoveToken ends a token at once; fs.ErrNotExist for an unknown id.
func (a *Access) RemoveToken(id string) error {
	return a.change(func(s *state) error {
		if s.Tokens[id] == nil {
			return fmt.Errorf("token %q: %w", id, fs.ErrNotExist)
		}
		delete(s.Tokens, id)
		return nil
	})
}

// giveKeyLocked gives a new token its access key; a.changing is held.
func (a *Access) giveKeyLocked(t *record, text string) {
	id, secret := AccessKey(text)
	t.AccessKey, t.Signing = id, a.sealers().seal("", t.ID, []byte(secret)) // no tenant has the name ""
}
