package access

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
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

// Secret returns a secret's value, which the caller must wipe. fs.ErrNotExist for an unknown name.
func (a *Access) Secret(tenant, name string) ([]byte, error) {
	if err := checkSecret(tenant, name); err != nil {
		return nil, err
	}
	for {
		a.mu.Lock()
		keys := a.keys.openers()
		a.mu.Unlock()
		sealed, err := os.ReadFile(a.secrets.pathOf(tenant, name))
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
	all, err := os.ReadDir(a.secrets.pathOf(tenant, ""))
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

// RemoveSecret removes a secret; fs.ErrNotExist for an unknown name.
func (a *Access) RemoveSecret(tenant, name string) error {
	if err := checkSecret(tenant, name); err != nil {
		return err
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	path := a.secrets.pathOf(tenant, name)
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
