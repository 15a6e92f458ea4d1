package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

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

// KnownAccessKey checks an access key before a request's body is read. Errors: ErrToken,
// ErrUnavailable, and *SlowDownError for an address with too many failures.
func (a *Access) KnownAccessKey(id string, client netip.Addr) error {
	if err := a.Slowed(client); err != nil {
		return err
	}
	t, _ := a.signer(id)
	if t == nil {
		return a.Failed(Identity{}, client, ErrToken)
	}
	return t.elsewhere()
}

// AuthenticateSigned returns the signer of a request. verify checks the signature with the secret,
// in constant time. Errors: those of Authenticate, and ErrSignature.
func (a *Access) AuthenticateSigned(id string, client netip.Addr, verify func(secret []byte) bool) (Identity, error) {
	t, keys := a.signer(id)
	if t == nil {
		return Identity{}, a.Failed(Identity{}, client, ErrToken)
	}
	if err := t.elsewhere(); err != nil {
		return Identity{}, err
	}
	secret, err := keys.open("", t.ID, t.Signing)
	if err != nil {
		return Identity{}, errors.Join(ErrUnavailable, fmt.Errorf("access key %s: %w", id, err))
	}
	defer clear(secret)
	if !verify(secret) {
		return Identity{}, a.Failed(t.identity(), client, ErrSignature)
	}
	who, err := a.holds(t)
	if err != nil {
		return Identity{}, a.Failed(who, client, err)
	}
	return who, nil
}

// signer returns the token of an access key, and the keys that open its secret.
func (a *Access) signer(id string) (*record, keyring) {
	token, ours := strings.CutPrefix(id, accessKeyPrefix)
	if !ours || len(token) != idSize || strings.ToUpper(token) != token {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock() // a rotation changes both
	t := a.state.Load().Tokens[strings.ToLower(token)]
	if t == nil || t.AccessKey == "" {
		return nil, nil
	}
	return t, a.keys.openers()
}
