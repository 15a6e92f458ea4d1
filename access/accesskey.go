package access

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fre-engine/fre/failure"
)

// A token may have an access key, for clients that sign requests with a secret instead of sending
// it (AWS Signature Version 4). To verify a signature the server needs the secret itself; a hash is
// not enough. The secret is derived one-way from the token's text, and kept sealed like tenants'
// secrets.
//
//	id      FREA and the token's id, in capital letters: 20 characters, as AWS has them
//	secret  HMAC-SHA256 of "fre access key" by the token's text, base64: 43 characters
const accessKeyPrefix = "FREA"

// ErrSignature says that a signature does not match the access key. It is an ErrToken.
var ErrSignature = failure.Wrap(failure.BadSignature, fmt.Errorf("%w: the signature does not match", ErrToken), "")

// AccessKey derives the access key from a token's text.
func AccessKey(token string) (id, secret string) {
	rest := strings.TrimPrefix(token, tokenPrefix)
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("fre access key"))
	return accessKeyID(rest[:min(idSize, len(rest))]), base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func accessKeyID(token string) string { return accessKeyPrefix + strings.ToUpper(token) }

// giveKeyLocked gives a new token its access key; a.changing is held.
func (a *Access) giveKeyLocked(t *record, text string) {
	id, secret := AccessKey(text)
	t.AccessKey, t.Signing = id, a.sealers().seal("", t.ID, []byte(secret)) // no tenant has the name ""
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

// elsewhere returns ErrUnavailable if only another node has the access key's secret.
func (t *record) elsewhere() error {
	if t.Signing != nil {
		return nil
	}
	return fmt.Errorf("%w: access key %s works only on the node that made the key: to share access keys, give all nodes the same cluster.key_file", ErrUnavailable, t.AccessKey)
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

// resealKeysLocked seals access keys with the newest key.
func (a *Access) resealKeysLocked() error {
	next, changed := a.state.Load().clone(), false
	for id, t := range next.Tokens {
		if !a.keys.own[1:].seals(t.Signing) { // sealed by the newest key, or by a key of all nodes
			continue
		}
		secret, err := a.keys.own.open("", id, t.Signing)
		if err != nil {
			return fmt.Errorf("access key of token %s: %w", id, err)
		}
		c := *t
		c.Signing, changed = a.keys.own.seal("", id, secret), true
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
