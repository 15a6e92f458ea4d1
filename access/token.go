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

// A token is fre_ID_SECRET: 8 random bytes in hexadecimal, which find the record, and 32 in
// base64url. 256 random bits cannot be guessed, so a fast hash (SHA-256) protects them as well as a
// slow one, and checking tokens cannot keep the engine busy.
const (
	tokenPrefix = "fre_"
	idSize      = 16
	hashSize    = 64
	secretSize  = 43
)

// Token is a token as lists show it, without the secret, which is shown only once.
type Token struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Tenant   string    `json:"tenant"` // AllTenants for all
	Scopes   []Scope   `json:"scopes"`
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires,omitzero"`   // zero: never
	LastUsed time.Time `json:"last_used,omitzero"` // to the minute; zero: not yet
	Replaced string    `json:"replaced,omitempty"` // id of the successor

	AccessKey string `json:"access_key,omitempty"` // id of the access key, "" without one
}

// record is a token in access.json.
type record struct {
	Token
	Hash    string `json:"hash"`              // SHA-256 of the secret, in hexadecimal
	Signing []byte `json:"signing,omitempty"` // the access key's secret, sealed
	Shared  bool   `json:"shared,omitempty"`  // the table of a cluster has or had the token

	used *atomic.Int64 // Unix seconds; survives changes of the record
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

// Tokens returns a tenant's tokens, or all tokens for AllTenants, oldest first.
func (r *records) Tokens(tenant string) []Token {
	var out []Token
	for _, t := range r.state.Load().Tokens {
		if tenant == AllTenants || t.Tenant == tenant {
			out = append(out, t.shown())
		}
	}
	slices.SortFunc(out, func(x, y Token) int { return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID)) })
	return out
}

// Token returns a token by id; fs.ErrNotExist if unknown.
func (r *records) Token(id string) (Token, error) {
	if t := r.state.Load().Tokens[id]; t != nil {
		return t.shown(), nil
	}
	return Token{}, fmt.Errorf("token %q: %w", id, fs.ErrNotExist)
}

// Limit of failed authentications from one address: 10 at once, then one every 6 seconds. The limit
// never delays a valid token of FRE's own, so an attacker cannot shut out other clients behind the
// same address.
const (
	failureEvery = 6 * time.Second
	failureBurst = 10
)

// Authenticate returns the sender of a request, by the Authorization field: "Bearer TOKEN", or
// "Basic …" with the token as password, for clients that know only passwords (RFC 6750 section 2.1,
// RFC 7617). Errors: ErrNoToken, ErrToken, ErrUnavailable, and *SlowDownError after too many
// failures from the address. Only ErrToken is written to the audit log.
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

// Failed counts a failed authentication, which the caller may have found, and writes it to the
// audit log. Failed returns err, or *SlowDownError after too many failures.
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

// Slowed returns a *SlowDownError for an address with too many failures. It protects checks that
// cost more than a hash, and so also delays valid credentials.
func (a *Access) Slowed(client netip.Addr) error {
	if wait := a.failures.Left(client); wait > 0 {
		return &SlowDownError{What: "failures of authentication", After: wait}
	}
	return nil
}

// bearer returns the token in an Authorization field.
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

// identify checks a token. With an error, the identity is the claimed one, as far as known.
func (a *Access) identify(ctx context.Context, token string, client netip.Addr) (Identity, error) {
	rest, ours := strings.CutPrefix(token, tokenPrefix)
	if !ours {
		// A signature costs more than a hash, and an unknown key costs a request to the issuer.
		if err := a.Slowed(client); err != nil {
			return Identity{}, err
		}
		return a.oidc.identify(ctx, token)
	}
	if len(rest) != idSize+1+secretSize || rest[idSize] != '_' {
		return Identity{}, ErrToken
	}
	// The id is not secret: the time of the lookup may depend on it.
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

// holds returns the identity of a token's holder, or ErrExpired.
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

// noHash is the hash of no token.
var noHash = strings.Repeat("0", hashSize)

// touch notes that a token was used. The next change, or Close, writes the time to disk; a crash
// loses no more than the time.
func (a *Access) touch(t *record, now time.Time) {
	t.used.Store(now.Unix())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = true
}
