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
	"path/filepath"
	"regexp"
	"slices"
	"time"

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

// Limits of secrets.
const (
	MaxSecretBytes = 64 << 10
	MaxSecrets     = 1000 // of a tenant
)

// Secret is a secret as lists show it, without the value.
type Secret struct {
	Name    string
	Updated time.Time
	Bytes   int64  // of the value
	Node    string // the only node with the secret; "": all nodes
}

var secretName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func checkSecret(tenant, name string) error {
	if err := checkTenant(tenant); err != nil {
		return err
	}
	if !secretName.MatchString(name) {
		return fmt.Errorf("%q is %w of a secret: letters, digits and . _ -, at most 63, beginning with a letter or digit", name, ErrName)
	}
	return nil
}

// PutMode says whether PutSecret creates or replaces.
type PutMode int

// The modes.
const (
	Create PutMode = iota // ErrExists if the name is in use
	Update                // fs.ErrNotExist if the name is not in use
)

// PutSecret seals a value and stores it. Errors: ErrName, ErrSecret, and those of mode.
func (a *Access) PutSecret(tenant, name string, value []byte, mode PutMode) error {
	if err := checkSecret(tenant, name); err != nil {
		return err
	}
	if len(value) == 0 || len(value) > MaxSecretBytes {
		return fmt.Errorf("%d bytes are %w: from 1 to %d", len(value), ErrSecret, MaxSecretBytes)
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	if a.sharesSecrets() {
		return a.shareSecret(tenant, name, value, func() error { return a.secrets.checkPut(tenant, name, mode) })
	}
	if err := a.secrets.checkPut(tenant, name, mode); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.secrets.write(tenant, name, a.sealers().seal(tenant, name, value))
}

// secretFiles is the path of the sealed secrets: a directory for each tenant with a file for each
// secret. Access.changing guards the files.
type secretFiles string

func (s secretFiles) path(tenant, name string) string { return filepath.Join(string(s), tenant, name) }

// checkPut returns an error if a secret may not be put.
func (s secretFiles) checkPut(tenant, name string, mode PutMode) error {
	path := s.path(tenant, name)
	_, err := os.Lstat(path)
	switch {
	case mode == Create && err == nil:
		return fmt.Errorf("secret %s of tenant %s %w", name, tenant, ErrExists)
	case mode == Update && err != nil:
		return fmt.Errorf("secret %q of tenant %s: %w", name, tenant, err)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if mode == Create {
		all, err := os.ReadDir(filepath.Dir(path))
		if err = ignoreMissing(err); err != nil {
			return err
		}
		if len(all) >= MaxSecrets {
			return fmt.Errorf("tenant %s has %d secrets, the most allowed: %w", tenant, len(all), ErrSecret)
		}
	}
	return nil
}

func (s secretFiles) write(tenant, name string, sealed []byte) error {
	path := s.path(tenant, name)
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := errors.Join(writeWhole(path, sealed), syncDir(filepath.Dir(dir))); err != nil {
		return fmt.Errorf("write secret %s: %w", name, err)
	}
	return nil
}

// Secret returns a secret's value, which the caller must wipe. fs.ErrNotExist for an unknown name.
func (a *Access) Secret(tenant, name string) ([]byte, error) {
	if err := checkSecret(tenant, name); err != nil {
		return nil, err
	}
	for {
		a.mu.Lock()
		keys := a.keys.openers()
		a.mu.Unlock()
		sealed, err := os.ReadFile(a.secrets.path(tenant, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("secret %q of tenant %s: %w", name, tenant, fs.ErrNotExist)
		}
		if err != nil {
			return nil, err
		}
		value, err := keys.open(tenant, name, sealed)
		if errors.Is(err, errKey) {
			a.mu.Lock()
			changed := !bytes.Equal(a.keys.own[0].id[:], keys[0].id[:])
			a.mu.Unlock()
			if changed {
				continue // rotated meanwhile
			}
		}
		if err != nil {
			return nil, fmt.Errorf("secret %s of tenant %s: %w", name, tenant, err)
		}
		return value, nil
	}
}

// Secrets returns a tenant's secrets, sorted by name.
func (a *Access) Secrets(tenant string) ([]Secret, error) {
	if err := checkTenant(tenant); err != nil {
		return nil, err
	}
	all, err := os.ReadDir(a.secrets.path(tenant, ""))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var out []Secret
	for _, e := range all {
		info, err := e.Info()
		if err != nil || !secretName.MatchString(e.Name()) { // removed meanwhile, or left by a crash
			continue
		}
		s := Secret{Name: e.Name(), Updated: info.ModTime().UTC(), Bytes: info.Size() - sealedSize}
		if a.table != nil && a.keys.shared == nil {
			s.Node = a.node
		}
		out = append(out, s)
	}
	return out, nil
}

// sealedSize is how many bytes sealing adds.
const sealedSize = int64(sealHead + chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead)

// RemoveSecret removes a secret; fs.ErrNotExist for an unknown name.
func (a *Access) RemoveSecret(tenant, name string) error {
	if err := checkSecret(tenant, name); err != nil {
		return err
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	path := a.secrets.path(tenant, name)
	if a.sharesSecrets() {
		return a.shareSecret(tenant, name, nil, func() error {
			_, err := os.Lstat(path)
			if err != nil {
				err = fmt.Errorf("secret %q of tenant %s: %w", name, tenant, err)
			}
			return err
		})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("secret %q of tenant %s: %w", name, tenant, err)
	}
	return syncDir(filepath.Dir(path))
}

// RotateKey seals all secrets with a new key and forgets the old key. After a crash both keys exist
// and the next Open continues. Secrets sealed by a key of all nodes stay unchanged.
func (a *Access) RotateKey() error {
	a.changing.Lock()
	defer a.changing.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := append(keyring{newKey()}, a.keys.own...)
	if err := writeWhole(a.cfg.KeyFile, keys.encode()); err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	a.keys.own = keys
	return a.finishRotationLocked()
}

func (a *Access) finishRotation() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.finishRotationLocked()
}

// resealLocked seals a secret's file with the newest key.
func (a *Access) resealLocked(path string, d fs.DirEntry) error {
	sealed, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if a.keys.own[:1].seals(sealed) || a.keys.shared.seals(sealed) {
		return nil
	}
	tenant := filepath.Base(filepath.Dir(path))
	value, err := a.keys.own.open(tenant, d.Name(), sealed)
	if err != nil {
		return fmt.Errorf("secret %s of tenant %s: %w", d.Name(), tenant, err)
	}
	defer clear(value)
	info, err := d.Info()
	if err != nil {
		return err
	}
	if err := writeWhole(path, a.keys.own.seal(tenant, d.Name(), value)); err != nil {
		return err
	}
	return os.Chtimes(path, time.Time{}, info.ModTime()) // the value is as old as before
}

func (a *Access) finishRotationLocked() error {
	if len(a.keys.own) == 1 {
		return nil
	}
	err := filepath.WalkDir(string(a.secrets), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !secretName.MatchString(d.Name()) {
			return err
		}
		return a.resealLocked(path, d)
	})
	if err == nil {
		err = a.resealKeysLocked()
	}
	if err != nil {
		return fmt.Errorf("rotate key: %w", err)
	}
	keys := a.keys.own[:1:1]
	if err := writeWhole(a.cfg.KeyFile, keys.encode()); err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	a.keys.own = keys
	return nil
}

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

// errKey says that the key of a sealed value is missing.
var errKey = errors.New("the key file lacks the key of the value")

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

// opens checks that the key of all nodes opens the secret.
func (k keyrings) opens(r *secretRow) error {
	if r.Removed {
		return nil
	}
	opened, err := k.shared.open(r.Tenant, r.Name, r.Sealed)
	if errors.Is(err, errKey) {
		return fmt.Errorf("%w: give all nodes the same cluster.key_file", err)
	}
	if err != nil {
		return err
	}
	clear(opened)
	return nil
}

// sealers returns the keys that seal new values.
func (a *Access) sealers() keyring {
	if a.sharesSecrets() {
		return a.keys.shared
	}
	return a.keys.own
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
