package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// A token is fre_ID_SECRET: eight random bytes in hexadecimal, by which its record is
// found, and 32 in base64url. Nobody guesses 256 random bits, so that their SHA-256 is as
// good a hash as a slow one, and checking one is no way to keep the engine busy.
const (
	tokenPrefix = "fre_"
	idSize      = 16
	hashSize    = 64
	secretSize  = 43
)

// Token is what lists show of one. Its secret was shown once.
type Token struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Tenant   string    `json:"tenant"` // AllTenants for all
	Scopes   []Scope   `json:"scopes"`
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"`   // zero: never
	LastUsed time.Time `json:"last_used,omitzero"` // to the minute; zero: not yet
	Replaced string    `json:"replaced,omitempty"` // id of the token that has come in its place

	AccessKey string `json:"access_key,omitempty"` // id of its access key, if it has one
}

// record is what access.json holds of a token.
type record struct {
	Token
	Hash    string `json:"hash"`              // SHA-256 of the secret, hexadecimal
	Signing []byte `json:"signing,omitempty"` // the access key's secret, sealed
	Shared  bool   `json:"shared,omitempty"`  // the table of a cluster has, or has had, it

	used *atomic.Int64 // Unix seconds; kept over changes
}

func (t *record) lastUsed() time.Time {
	if at := t.used.Load(); at != 0 {
		return time.Unix(at, 0).UTC()
	}
	return time.Time{}
}

func (t *record) shown() Token {
	out := t.Token
	out.LastUsed = t.lastUsed()
	return out
}

// TokenOptions say what a new token is good for.
type TokenOptions struct {
	Name   string
	Tenant string // AllTenants for all
	Scopes []Scope
	Life   time.Duration // 0: it does not expire

	AccessKey bool // it has an access key, too: see [AccessKey]
}

func (o TokenOptions) check() error {
	if o.Tenant != AllTenants {
		if err := checkTenant(o.Tenant); err != nil {
			return err
		}
	}
	switch {
	case o.Name == "" || len(o.Name) > 128 || strings.ContainsFunc(o.Name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%q is %w of a token: say in a few words who has it", o.Name, ErrName)
	case o.AccessKey && o.Tenant == AllTenants:
		return fmt.Errorf("an access key for all tenants is %w: requests that are signed name no tenant", ErrInvalid)
	case len(o.Scopes) == 0:
		return fmt.Errorf("a token without scopes is %w: it is good for nothing", ErrInvalid)
	case o.Life < 0:
		return fmt.Errorf("a life of %s is %w", o.Life, ErrInvalid)
	}
	for _, s := range o.Scopes {
		if !slices.Contains(Scopes(), s) {
			return fmt.Errorf("scope %q is %w: deploy, invoke, read or admin", s, ErrName)
		}
	}
	return nil
}

// CreateToken makes a token and returns its text, which nobody can ask for again.
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
		Token: Token{ID: hex.EncodeToString(id[:]), Name: o.Name, Tenant: o.Tenant, Scopes: slices.Clone(o.Scopes), Created: a.now()},
		Hash:  hex.EncodeToString(hash[:]), used: new(atomic.Int64),
	}
	if o.Life > 0 {
		t.Expires = t.Created.Add(o.Life)
	}
	return t, tokenPrefix + t.ID + "_" + text
}

// RotateToken makes a token that is good for the same, and for as long as the old one was
// given. The old one holds for the grace yet. fs.ErrNotExist.
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
			return fmt.Errorf("the token that comes in the place of %s %w: it is %s", id, ErrExists, old.Replaced)
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
		if end := a.now().Add(grace); old.Expires.IsZero() || end.Before(old.Expires) {
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

// RemoveToken ends a token at once; fs.ErrNotExist.
func (a *Access) RemoveToken(id string) error {
	return a.change(func(s *state) error {
		if s.Tokens[id] == nil {
			return fmt.Errorf("token %q: %w", id, fs.ErrNotExist)
		}
		delete(s.Tokens, id)
		return nil
	})
}

// Tokens lists those of a tenant, AllTenants for everybody's, oldest first.
func (a *Access) Tokens(tenant string) []Token {
	var out []Token
	for _, t := range a.state.Load().Tokens {
		if tenant == AllTenants || t.Tenant == tenant {
			out = append(out, t.shown())
		}
	}
	slices.SortFunc(out, func(x, y Token) int { return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID)) })
	return out
}

// Token finds one; fs.ErrNotExist.
func (a *Access) Token(id string) (Token, error) {
	if t := a.state.Load().Tokens[id]; t != nil {
		return t.shown(), nil
	}
	return Token{}, fmt.Errorf("token %q: %w", id, fs.ErrNotExist)
}

// What may fail to authenticate from one address: ten at once, then one in six seconds.
// Tokens that hold are never held up, so that nobody can shut out those who share an
// address.
const (
	failureEvery = 6 * time.Second
	failureBurst = 10
)

// Authenticate says who sent a request, by its Authorization field: "Bearer TOKEN", or
// "Basic …" with the token for a password, as clients do that know no better (RFC 6750
// section 2.1, RFC 7617). Errors: ErrNoToken, ErrToken, ErrUnavailable, and a
// *SlowDownError where too many from the address have failed. All but the first and the
// last are in the audit log, as failures.
func (a *Access) Authenticate(ctx context.Context, authorization string, client netip.Addr) (Identity, error) {
	token, ok := bearer(authorization)
	if !ok {
		return Identity{}, ErrNoToken
	}
	id, err := a.identify(ctx, token, client)
	if err == nil || errors.Is(err, ErrUnavailable) {
		return id, err
	}
	return Identity{}, a.Failed(id, client, err)
}

// Failed counts a failure of authentication, also one that somebody else has found, and
// writes it down. It is err, or a *SlowDownError where there were too many.
func (a *Access) Failed(id Identity, client netip.Addr, err error) error {
	var slow *SlowDownError
	if errors.As(err, &slow) {
		return err
	}
	if wait := a.failures.Take(client); wait > 0 {
		return &SlowDownError{What: "failures of authentication", After: wait}
	}
	a.Record(Entry{Who: id.Who, Tenant: id.Tenant, Client: client, Action: "authenticate", Result: Refused, Reason: err.Error()})
	return err
}

// Slowed is a *SlowDownError for an address that has failed too often. It is for what costs
// more to look at than a hash: it holds up what is right, too.
func (a *Access) Slowed(client netip.Addr) error {
	if wait := a.failures.Left(client); wait > 0 {
		return &SlowDownError{What: "failures of authentication", After: wait}
	}
	return nil
}

// bearer is the token in an Authorization field.
func bearer(authorization string) (string, bool) {
	scheme, rest, _ := strings.Cut(authorization, " ")
	rest = strings.TrimLeft(rest, " ")
	switch {
	case rest == "":
		return "", false
	case strings.EqualFold(scheme, "bearer"):
		return rest, true
	case strings.EqualFold(scheme, "basic"):
		pair, err := base64.StdEncoding.DecodeString(rest)
		_, password, found := strings.Cut(string(pair), ":")
		return password, err == nil && found && password != ""
	}
	return "", false
}

// identify checks a token. With an error, the identity is who it claims to be, as far as
// that is known.
func (a *Access) identify(ctx context.Context, token string, client netip.Addr) (Identity, error) {
	rest, ours := strings.CutPrefix(token, tokenPrefix)
	if !ours {
		// A signature costs more than a hash, and an unknown key a request to the issuer.
		if err := a.Slowed(client); err != nil {
			return Identity{}, err
		}
		return a.identifyOIDC(ctx, token)
	}
	if len(rest) != idSize+1+secretSize || rest[idSize] != '_' {
		return Identity{}, ErrToken
	}
	// The id is no secret: it may be looked up in whatever time that takes.
	t := a.state.Load().Tokens[rest[:idSize]]
	want := noHash
	if t != nil {
		want = t.Hash
	}
	sum := sha256.Sum256([]byte(rest[idSize+1:]))
	var got [hashSize]byte
	hex.Encode(got[:], sum[:])
	same := subtle.ConstantTimeCompare(got[:], []byte(want)) == 1
	if t == nil || !same {
		return Identity{}, ErrToken
	}
	return a.holds(t)
}

// holds is who has shown a token, unless it has expired.
func (a *Access) holds(t *record) (Identity, error) {
	id := t.identity()
	now := a.cfg.Now()
	if !t.Expires.IsZero() && !now.Before(t.Expires) {
		return id, ErrExpired
	}
	if last := t.used.Load(); now.Unix()-last >= 60 || last > now.Unix() {
		a.touch(t, now)
	}
	return id, nil
}

func (t *record) identity() Identity {
	return Identity{Who: fmt.Sprintf("token %s (%s)", t.Name, t.ID), Tenant: t.Tenant, Scopes: t.Scopes}
}

// noHash is that of no token.
var noHash = strings.Repeat("0", hashSize)

// touch notes that a token was used, on the disk with the next change or by Close: a
// crash loses no more than that.
func (a *Access) touch(t *record, now time.Time) {
	t.used.Store(now.Unix())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = true
}
