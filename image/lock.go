package image

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// LockFile is the name of the lock file beside fret.yaml.
const LockFile = "fret.lock"

const (
	lockVersion  = 1
	maxLockBytes = 16 << 20 // npm's lock of a thousand packages has about 1 MiB
)

// Lock pins what a build resolved: names, versions and hashes, no host names.
//
// A section is valid while its Request equals the template's list:
// [Lock.PipFor] and [Lock.NPMFor] say so.
type Lock struct {
	Version int        `json:"version"` // 1
	Base    LockedBase `json:"base"`
	Pip     *LockedPip `json:"pip,omitempty"`
	NPM     *LockedNPM `json:"npm,omitempty"`
}

// LockedBase names the base environment an image was built on. It is a record:
// Debian's archive keeps no old versions to go back to.
type LockedBase struct {
	Name     string            `json:"name"`
	Packages map[string]string `json:"packages"` // Debian package → version
}

// LockedPip is valid while Request equals the template's packages.pip.
type LockedPip struct {
	Request  []string        `json:"request"`
	Packages []LockedPackage `json:"packages"`
}

// LockedNPM is valid while Request equals the template's packages.npm.
// PackageLock is npm's own package-lock.json (v3) without "resolved" members.
type LockedNPM struct {
	Request     []string        `json:"request"`
	PackageLock json.RawMessage `json:"package_lock"`
}

// LockedPackage pins one package version.
type LockedPackage struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Hashes  []string `json:"hashes"` // "sha256:…", one per acceptable file
}

var (
	hashPattern       = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	lockedNamePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	lockedVersion     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,127}$`)
)

// PipFor returns the pip section if it answers the template's request, else
// nil. It is safe on a nil Lock.
func (l *Lock) PipFor(t *Template) *LockedPip {
	if l == nil || l.Pip == nil || !slices.Equal(l.Pip.Request, t.Packages.Pip) {
		return nil
	}
	return l.Pip
}

// NPMFor returns the npm section if it answers the template's request, else
// nil. It is safe on a nil Lock.
func (l *Lock) NPMFor(t *Template) *LockedNPM {
	if l == nil || l.NPM == nil || !slices.Equal(l.NPM.Request, t.Packages.NPM) {
		return nil
	}
	return l.NPM
}

// Find returns the pinned version of a package, under the name's normal form
// (PEP 503).
func (l *LockedPip) Find(name string) (LockedPackage, bool) {
	name = normalName(name)
	i := slices.IndexFunc(l.Packages, func(p LockedPackage) bool { return normalName(p.Name) == name })
	if i < 0 {
		return LockedPackage{}, false
	}
	return l.Packages[i], true
}

var nameRuns = regexp.MustCompile(`[-_.]+`)

func normalName(s string) string { return nameRuns.ReplaceAllString(strings.ToLower(s), "-") }

// ReadLock reads dir's lock file. Where there is none it returns nil.
func ReadLock(dir *os.Root) (*Lock, error) {
	src, err := readSmall(dir, LockFile, maxLockBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ParseLock(LockFile, src)
}

// readSmall reads a regular file of at most most bytes below dir.
func readSmall(dir *os.Root, name string, most int64) ([]byte, error) {
	info, err := dir.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: not a regular file", name)
	}
	f, err := dir.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(src)) > most {
		return nil, fmt.Errorf("read %s: more than %s", name, formatBytes(most))
	}
	return src, nil
}

// ParseLock reads a lock strictly: unknown members, bad hashes and host names
// are refused. name stands in errors, which are [TemplateErrors].
func ParseLock(name string, src []byte) (*Lock, error) {
	s := &source{file: name}
	const next = "; delete the file to resolve anew"
	if len(src) > maxLockBytes {
		return nil, s.fail(position{}, "the lock has %d bytes: the limit is %s%s", len(src), formatBytes(maxLockBytes), next)
	}
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.DisallowUnknownFields()
	var l Lock
	if err := dec.Decode(&l); err != nil {
		s.lines = strings.Split(string(src), "\n")
		at := dec.InputOffset()
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			at = syntax.Offset
		case errors.As(err, &kind):
			at = kind.Offset
		}
		return nil, s.fail(offsetPosition(src, at), "%s%s", err, next)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, s.fail(position{}, "more than one JSON value%s", next)
	}
	if err := l.check(); err != nil {
		return nil, s.fail(position{}, "%s%s", err, next)
	}
	return &l, nil
}

func offsetPosition(src []byte, offset int64) position {
	before := src[:min(max(offset-1, 0), int64(len(src)))]
	line := bytes.LastIndexByte(before, '\n') + 1
	return position{bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[line:]) + 1}
}

func (l *Lock) check() error {
	if l.Version != lockVersion {
		return fmt.Errorf("version %d of the lock format is not known here: this FRE writes version %d", l.Version, lockVersion)
	}
	if l.Pip != nil {
		for _, p := range l.Pip.Packages {
			if !lockedNamePattern.MatchString(p.Name) || !lockedVersion.MatchString(p.Version) {
				return fmt.Errorf("bad package %q version %q", p.Name, p.Version)
			}
			if len(p.Hashes) == 0 {
				return fmt.Errorf("package %s %s has no hash", p.Name, p.Version)
			}
			for _, h := range p.Hashes {
				if !hashPattern.MatchString(h) {
					return fmt.Errorf("package %s %s: bad hash %q", p.Name, p.Version, h)
				}
			}
		}
	}
	if l.NPM != nil {
		var v any
		if err := json.Unmarshal(l.NPM.PackageLock, &v); err != nil {
			return fmt.Errorf("package_lock: %w", err)
		}
		if _, ok := v.(map[string]any); !ok {
			return errors.New("package_lock is not an object")
		}
		if hasMember(v, "resolved") {
			return errors.New(`package_lock holds "resolved" members: a lock names no hosts`)
		}
	}
	return nil
}

func hasMember(v any, name string) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			if key == name || hasMember(below, name) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(below any) bool { return hasMember(below, name) })
	}
	return false
}

// Encode returns the file's bytes: the same lock always gives the same.
func (l *Lock) Encode() ([]byte, error) {
	out := *l
	out.Version = lockVersion
	if out.Base.Packages == nil {
		out.Base.Packages = map[string]string{}
	}
	if l.Pip != nil {
		pip := LockedPip{Request: l.Pip.Request, Packages: slices.Clone(l.Pip.Packages)}
		for i, p := range pip.Packages {
			hashes := slices.Clone(p.Hashes)
			slices.Sort(hashes)
			pip.Packages[i].Hashes = slices.Compact(hashes)
		}
		slices.SortFunc(pip.Packages, func(a, b LockedPackage) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
		})
		out.Pip = &pip
	}
	if err := out.check(); err != nil {
		return nil, fmt.Errorf("encode %s: %w", LockFile, err)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(out); err != nil {
		return nil, fmt.Errorf("encode %s: %w", LockFile, err)
	}
	return b.Bytes(), nil
}

// WriteLock writes l beside the template, whole or not at all. An unchanged
// lock is left alone, with its time stamps.
func WriteLock(dir *os.Root, l *Lock) (err error) {
	data, err := l.Encode()
	if err != nil {
		return err
	}
	if old, err := readSmall(dir, LockFile, maxLockBytes); err == nil && bytes.Equal(old, data) {
		return nil
	}
	const aside = "." + LockFile + ".new"
	if err := dir.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write %s: %w", LockFile, err)
	}
	f, err := dir.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", LockFile, err)
	}
	_, err = f.Write(data)
	err = cmp.Or(err, f.Sync(), f.Close())
	if err == nil {
		err = dir.Rename(aside, LockFile)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", LockFile, errors.Join(err, dir.Remove(aside)))
	}
	return nil
}
