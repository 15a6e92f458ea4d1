package access

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// A token may have an access key, for clients that sign their requests with a secret
// instead of sending it (AWS Signature Version 4). Whoever verifies a signature needs that
// secret itself, so that its hash will not do: it is derived from the token's text, which
// nobody can turn back, and is kept sealed, as tenants' secrets are.
//
//	id      FREA and the token's id, in capital letters: 20 characters, as AWS has them
//	secret  HMAC-SHA256 of "fre access key" by the token's text, base64: 43 characters
const accessKeyPrefix = "FREA"

// ErrSignature says that a signature is not one of the access key's. It is an ErrToken.
var ErrSignature = fmt.Errorf("%w: the signature does not match", ErrToken)

// AccessKey is what a token's holder signs with, by the token's text.
func AccessKey(token string) (id, secret string) {
	rest := strings.TrimPrefix(token, tokenPrefix)
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("fre access key"))
	return accessKeyID(rest[:min(idSize, len(rest))]), base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func accessKeyID(token string) string { return accessKeyPrefix + strings.ToUpper(token) }

// giveKeyLocked gives a token that is being made its access key; a.changing is held.
func (a *Access) giveKeyLocked(t *record, text string) {
	id, secret := AccessKey(text)
	t.AccessKey, t.Signing = id, a.sealers().seal("", t.ID, []byte(secret)) // no tenant has that name
}

// KnownAccessKey says whether an access key is worth reading a request's body for. An
// address that has failed too often has a *SlowDownError.
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

// elsewhere says of a token that its access key's secret is on another node alone.
func (t *record) elsewhere() error {
	if t.Signing != nil {
		return nil
	}
	return fmt.Errorf("%w: access key %s is good at the node alone that made it: nodes share them by a key that all have (cluster.key_file)", ErrUnavailable, t.AccessKey)
}

// signer finds the token of an access key and the keys that open its secret.
func (a *Access) signer(id string) (*record, keyring) {
	token, ours := strings.CutPrefix(id, accessKeyPrefix)
	if !ours || len(token) != idSize || strings.ToUpper(token) != token {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock() // a key's rotation changes both
	t := a.state.Load().Tokens[strings.ToLower(token)]
	if t == nil || t.AccessKey == "" {
		return nil, nil
	}
	return t, a.openers()
}

// AuthenticateSigned says who has signed a request: verify says whether the signature is
// one by that secret, in constant time. Errors are Authenticate's and ErrSignature.
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

// resealKeysLocked seals access keys with the newest of the keys.
func (a *Access) resealKeysLocked() error {
	next, changed := a.state.Load().clone(), false
	for id, t := range next.Tokens {
		if !a.keys[1:].seals(t.Signing) { // by the newest already, or by a key of all nodes
			continue
		}
		secret, err := a.keys.open("", id, t.Signing)
		if err != nil {
			return fmt.Errorf("access key of token %s: %w", id, err)
		}
		c := *t
		c.Signing, changed = a.keys.seal("", id, secret), true
		clear(secret)
		next.Tokens[id] = &c
	}
	if !changed {
		return nil
	}
	if err := a.writeLocked(next); err != nil {
		return err
	}
	a.state.Store(next)
	return nil
}
