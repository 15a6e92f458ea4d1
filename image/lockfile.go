package image

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/fre-engine/fre/template"
)

// ReadLock reads dir's lock file, with the sections of the given sites. Without a lock file it returns
// nil.
func ReadLock(dir *os.Root, sites []Site) (*Lock, error) {
	src, err := readSmall(dir, LockFile, maxLockBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ParseLock(LockFile, src, sites)
}

// ParseLock reads a lock strictly: it refuses unknown members, bad hashes and host names. Errors
// are [template.Errors] with name as the file.
func ParseLock(name string, src []byte, sites []Site) (*Lock, error) {
	fail := func(format string, args ...any) error {
		return template.Errors{{File: name, Message: fmt.Sprintf(format, args...) + "; delete the file to resolve again"}}
	}
	if len(src) > maxLockBytes {
		return nil, fail("the lock has %d bytes: the limit is %s", len(src), template.FormatBytes(maxLockBytes))
	}
	dec := json.NewDecoder(bytes.NewReader(src))
	var members map[string]json.RawMessage
	if err := dec.Decode(&members); err != nil {
		at := dec.InputOffset()
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = syntax.Offset
		}
		return nil, template.Errors{template.ErrorAt(name, src, at, err.Error()+"; delete the file to resolve again")}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fail("several JSON values")
	}
	l, err := decodeLock(members, sites, true)
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return nil, fail("%s", err)
	}
	return l, nil
}

// decodeLock takes a lock's members apart. Only the outer lock has a member build, so nesting costs
// nothing.
func decodeLock(members map[string]json.RawMessage, sites []Site, outer bool) (*Lock, error) {
	l := &Lock{sites: siteNames(sites), Sites: map[string]Section{}}
	into := map[string]any{"version": &l.Version, "base": &l.Base, "deb": &l.Deb, "git": &l.Git}
	for _, s := range sites {
		if s, ok := s.(Locker); ok && string(members[s.Name()]) != "null" && members[s.Name()] != nil {
			l.Sites[s.Name()] = s.Section()
			into[s.Name()] = l.Sites[s.Name()]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		raw := members[name]
		switch {
		case string(raw) == "null":
		case name == "build" && outer:
			var build map[string]json.RawMessage
			err := json.Unmarshal(raw, &build)
			if err == nil {
				l.Build, err = decodeLock(build, sites, false)
			}
			if err != nil {
				return nil, fmt.Errorf("build: %w", err)
			}
		case name == "build":
			return nil, errors.New("holds another build")
		case into[name] == nil:
			return nil, fmt.Errorf("unknown field %q", name)
		default:
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.DisallowUnknownFields()
			if err := dec.Decode(into[name]); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return l, nil
}

// WriteLock writes l beside the template, whole or not at all. It does not touch an unchanged lock.
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

// newLock returns a lock with the sites' sections of locked, which may be nil.
func newLock(sites []Site, base LockedBase, locked *Lock) *Lock {
	l := &Lock{Version: lockVersion, Base: base, Sites: map[string]Section{}, sites: siteNames(sites)}
	if locked != nil {
		maps.Copy(l.Sites, locked.Sites)
	}
	return l
}

func siteNames(sites []Site) []string {
	names := make([]string, len(sites))
	for i, s := range sites {
		names[i] = s.Name()
	}
	return names
}

// MarshalJSON writes the members in the order of the file.
func (l *Lock) MarshalJSON() ([]byte, error) {
	type member struct {
		name  string
		value any
	}
	members := []member{{"version", l.Version}, {"base", l.Base}}
	for _, name := range l.sectionOrder() {
		members = append(members, member{name, l.Sites[name]})
	}
	if l.Deb != nil {
		members = append(members, member{"deb", l.Deb})
	}
	if l.Git != nil {
		members = append(members, member{"git", l.Git})
	}
	if l.Build != nil {
		members = append(members, member{"build", l.Build})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	separator := byte('{')
	for _, m := range members {
		b.WriteByte(separator)
		if err := enc.Encode(m.name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := enc.Encode(m.value); err != nil {
			return nil, err
		}
		separator = ','
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// sectionOrder returns the sites with a section in the order of the file, sites that the lock does
// not know last.
func (l *Lock) sectionOrder() []string {
	names := slices.Sorted(maps.Keys(l.Sites))
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(uint(slices.Index(l.sites, a)), uint(slices.Index(l.sites, b)))
	})
	return names
}

// Encode returns the file's bytes: equal locks give equal bytes.
func (l *Lock) Encode() ([]byte, error) {
	out := *l
	out.Version = lockVersion
	if out.Base.Packages == nil {
		out.Base.Packages = map[string]string{}
	}
	if err := out.check(); err != nil {
		return nil, fmt.Errorf("encode %s: %w", LockFile, err)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(&out); err != nil {
		return nil, fmt.Errorf("encode %s: %w", LockFile, err)
	}
	return b.Bytes(), nil
}

func (l *Lock) check() error {
	if l.Version != lockVersion {
		return fmt.Errorf("unknown version %d of the lock format: the engine knows version %d", l.Version, lockVersion)
	}
	for _, name := range slices.Sorted(maps.Keys(l.Sites)) {
		if err := l.Sites[name].Check(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if l.Build != nil {
		if err := l.Build.check(); err != nil {
			return fmt.Errorf("build: %w", err)
		}
	}
	if l.Git != nil && (!hashPattern.MatchString(l.Git.Request) || !commitPattern.MatchString(l.Git.Commit)) {
		return fmt.Errorf("git: bad request %q or commit %q", l.Git.Request, l.Git.Commit)
	}
	if l.Base.Digest != "" && !hashPattern.MatchString(string(l.Base.Digest)) {
		return fmt.Errorf("base %q: bad digest %q", l.Base.Name, l.Base.Digest)
	}
	if l.Deb != nil {
		return l.Deb.check()
	}
	return nil
}
