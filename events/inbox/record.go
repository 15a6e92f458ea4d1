package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// keySize is a key's length in bytes. The key has two hexadecimal digits for each.
const keySize = 16

// record remembers keys in a file with a line for each key.
type record struct {
	path string
	f    *os.File

	mu   sync.Mutex
	keys map[string]bool
}

// openRecord reads or creates the file. A crash may have torn the last line, which is then ignored.
func openRecord(path string) (*record, error) {
	r := &record{path: path, keys: map[string]bool{}}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	all, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range bytes.Lines(all) {
		if len(line) == 2*keySize+1 && line[2*keySize] == '\n' {
			r.keys[string(line[:2*keySize])] = true
		}
	}
	return r, r.write()
}

func (r *record) has(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[key]
}

// add records keys on disk.
func (r *record) add(keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []byte
	for _, k := range keys {
		r.keys[k] = true
		lines = append(append(lines, k...), '\n')
	}
	if _, err := r.f.Write(lines); err != nil {
		return fmt.Errorf("record of files: %w", err)
	}
	return unix.Fdatasync(int(r.f.Fd()))
}

// keep forgets all keys not in present, once most keys are useless.
func (r *record) keep(present map[string]bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.keys) < 2*len(present)+1000 {
		return nil
	}
	for k := range r.keys {
		if !present[k] {
			delete(r.keys, k)
		}
	}
	return r.write()
}

// write replaces the file.
func (r *record) write() error {
	f, err := os.CreateTemp(filepath.Dir(r.path), "new-*")
	if err != nil {
		return err
	}
	var all []byte
	for k := range r.keys {
		all = append(append(all, k...), '\n')
	}
	_, err = f.Write(all)
	if err = errors.Join(err, f.Sync()); err == nil {
		err = os.Rename(f.Name(), r.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("record of files: %w", err), f.Close(), os.Remove(f.Name()))
	}
	if r.f != nil {
		err = r.f.Close()
	}
	r.f = f
	return err
}
