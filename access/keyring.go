package access

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/crypto/chacha20poly1305"
)

// A sealed secret on disk:
//
//	"FRE-SECRET-1\n"  magic
//	8 bytes           id of the key
//	24 bytes          nonce, random
//	…                 the encrypted value, with 16 bytes of tag
//
// The cipher is XChaCha20-Poly1305, whose nonces are long enough to be random. Tenant and name are
// authenticated too, so a file that is moved to another tenant or name cannot be opened.
const (
	sealMagic = "FRE-SECRET-1\n"
	sealHead  = len(sealMagic) + keyIDSize
	keyIDSize = 8
)

// errKey says that the key of a sealed value is missing.
var errKey = errors.New("the key file lacks the key of the value")

// key seals secrets.
type key struct {
	id     [keyIDSize]byte
	secret [chacha20poly1305.KeySize]byte
}

// keyring is a list of keys: the first seals, all can open. A keyring is never modified.
type keyring []key

func newKey() (k key) {
	_, _ = rand.Read(k.id[:]) // never fails (crypto/rand)
	_, _ = rand.Read(k.secret[:])
	return k
}

func (r keyring) encode() []byte {
	var b bytes.Buffer
	b.WriteString("# Keys that FRE seals secrets with: the first for new ones. Keep a copy apart from the secrets.\n")
	for _, k := range r {
		fmt.Fprintf(&b, "%x %x\n", k.id, k.secret)
	}
	return b.Bytes()
}

// openKeys reads a key file, or creates a missing file with a new key.
func openKeys(path string) (keyring, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		r := keyring{newKey()}
		if err := writeWhole(path, r.encode()); err != nil {
			return nil, fmt.Errorf("make key file: %w", err)
		}
		return r, nil
	}
	return readKeys(path)
}

// readKeys reads a key file.
func readKeys(path string) (keyring, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key file %s is readable by other users (mode %04o): chmod 600", path, info.Mode().Perm())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := parseKeys(raw)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return r, nil
}

func parseKeys(raw []byte) (keyring, error) {
	var r keyring
	n := 0
	for line := range bytes.Lines(raw) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		id, secret, _ := bytes.Cut(line, []byte{' '})
		var k key
		if hex.DecodedLen(len(id)) != len(k.id) || hex.DecodedLen(len(secret)) != len(k.secret) {
			return nil, fmt.Errorf("line %d is not a key", n)
		}
		_, err := hex.Decode(k.id[:], id)
		if _, err2 := hex.Decode(k.secret[:], secret); err != nil || err2 != nil {
			return nil, fmt.Errorf("line %d is not a key", n)
		}
		if slices.ContainsFunc(r, func(other key) bool { return other.id == k.id }) {
			return nil, fmt.Errorf("line %d repeats the id of an earlier key", n)
		}
		r = append(r, k)
	}
	if len(r) == 0 {
		return nil, errors.New("no key in the file")
	}
	return r, nil
}

// keyrings are the keys of secrets. Access.mu guards them; a change also holds Access.changing.
type keyrings struct {
	own    keyring // keys of this node
	shared keyring // keys of all nodes; nil: none
}

// openers returns all keys.
func (k keyrings) openers() keyring { return slices.Concat(k.own, k.shared) }

// reseal seals a sealed value anew with the newest key of all nodes.
func (k keyrings) reseal(tenant, name string, sealed []byte) ([]byte, error) {
	if k.shared[:1].seals(sealed) {
		return sealed, nil
	}
	value, err := k.openers().open(tenant, name, sealed)
	if err != nil {
		return nil, err
	}
	defer clear(value)
	return k.shared.seal(tenant, name, value), nil
}

// outdated reports whether another key than the newest of all nodes seals the value, which may be
// nil.
func (k keyrings) outdated(sealed []byte) bool {
	return sealed != nil && k.shared != nil && !k.shared[:1].seals(sealed)
}

// seals reports whether one of the keys sealed the value.
func (r keyring) seals(sealed []byte) bool {
	return len(sealed) > sealHead && slices.ContainsFunc(r, func(k key) bool { return bytes.Equal(k.id[:], sealed[len(sealMagic):sealHead]) })
}

func (k *key) cipher() cipher.AEAD {
	c, err := chacha20poly1305.NewX(k.secret[:])
	if err != nil { // only for a wrong size: never
		panic(err)
	}
	return c
}

func aad(tenant, name string) []byte { return []byte("fre secret\x00" + tenant + "\x00" + name) }

func (r keyring) seal(tenant, name string, value []byte) []byte {
	out := make([]byte, 0, int(sealedSize)+len(value))
	out = append(append(out, sealMagic...), r[0].id[:]...)
	var nonce [chacha20poly1305.NonceSizeX]byte
	_, _ = rand.Read(nonce[:]) // never fails
	out = append(out, nonce[:]...)
	return r[0].cipher().Seal(out, nonce[:], value, aad(tenant, name))
}

func (r keyring) open(tenant, name string, sealed []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(sealed, []byte(sealMagic))
	if !ok || int64(len(sealed)) < sealedSize {
		return nil, fmt.Errorf("damaged file: %w", ErrSecret)
	}
	i := slices.IndexFunc(r, func(k key) bool { return bytes.Equal(k.id[:], rest[:keyIDSize]) })
	if i < 0 {
		return nil, errKey
	}
	rest = rest[keyIDSize:]
	nonce, rest := rest[:chacha20poly1305.NonceSizeX], rest[chacha20poly1305.NonceSizeX:]
	value, err := r[i].cipher().Open(nil, nonce, rest, aad(tenant, name))
	if err != nil {
		return nil, fmt.Errorf("changed file: %w", ErrSecret)
	}
	return value, nil
}

// sealedSize is how many bytes sealing adds.
const sealedSize = int64(sealHead + chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead)
