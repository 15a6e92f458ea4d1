package access

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
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

// secretFiles is the path of the sealed secrets: a directory for each tenant with a file for each
// secret. Access.changing guards the files.
type secretFiles string

func (s secretFiles) pathOf(tenant, name string) string {
	return filepath.Join(string(s), tenant, name)
}

// checkPut returns an error if a secret may not be put.
func (s secretFiles) checkPut(tenant, name string, mode PutMode) error {
	path := s.pathOf(tenant, name)
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
	path := s.pathOf(tenant, name)
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := errors.Join(writeWhole(path, sealed), syncDir(filepath.Dir(dir))); err != nil {
		return fmt.Errorf("write secret %s: %w", name, err)
	}
	return nil
}
