package node

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/template"
)

// Files of a project that npm reads and writes (npm help package-json, package-lock-json).
const (
	manifestFile = "package.json"
	lockFile     = "package-lock.json"
)

// manifest holds the members of a package.json about a function's packages, not about its
// development or publication.
type manifest struct {
	Dependencies map[string]string `json:"dependencies,omitempty"`
	Optional     map[string]string `json:"optionalDependencies,omitempty"`
	Dev          map[string]string `json:"devDependencies,omitempty"`
	Peer         map[string]string `json:"peerDependencies,omitempty"`
	Overrides    json.RawMessage   `json:"overrides,omitempty"`
}

// ReadRequests reads npm's lock beside a package.json. It implements image.RequestReader.
func (Site) ReadRequests(r *template.Requests, read func(string) ([]byte, error)) error {
	dir := path.Dir(r.File)
	var m manifest
	switch path.Base(r.File) {
	case manifestFile:
		raw, err := read(path.Join(dir, lockFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if m, err = parseManifest(r.File, r.Text); err != nil || raw == nil {
			return err
		}
		_, err = projectLock(path.Join(dir, lockFile), raw, m)
		return err
	case lockFile:
		raw, err := read(path.Join(dir, manifestFile))
		if err != nil {
			return err
		}
		if m, err = parseManifest(path.Join(dir, manifestFile), raw); err != nil {
			return err
		}
		_, err = projectLock(r.File, r.Text, m)
		return err
	}
	return fmt.Errorf("%s is not named %s: use npm's file of packages, with %s in the same directory if present", r.File, manifestFile, lockFile)
}

var (
	packageName = regexp.MustCompile(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*$`)
	packageSpec = regexp.MustCompile(`^(npm:(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*(@[^\x00-\x1f@/:]*)?|[^\x00-\x1f@/:]*)$`)
)

// parseManifest reads a package.json.
func parseManifest(file string, raw []byte) (manifest, error) {
	var m manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	for _, list := range []map[string]string{m.Dependencies, m.Optional} { // npm checks the remaining lists
		for _, name := range slices.Sorted(maps.Keys(list)) {
			if !packageName.MatchString(name) || !packageSpec.MatchString(list[name]) {
				return m, fmt.Errorf("%s: %q: %q: only packages from a registry are supported: write a version or a range, for example \"^1.2.0\"", file, name, list[name])
			}
		}
	}
	if strings.Contains(string(m.Overrides), "${") || strings.Contains(string(m.Overrides), "://") || strings.Contains(string(m.Overrides), "file:") {
		return m, fmt.Errorf("%s: overrides: only packages from a registry are supported", file)
	}
	return m, nil
}

// projectLock returns npm's own lock of a project, if it answers the package.json: npm ci makes the
// same check.
func projectLock(file string, raw []byte, m manifest) (json.RawMessage, error) {
	var l packageLock
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if l.Version != 2 && l.Version != 3 {
		return nil, fmt.Errorf("%s: lockfileVersion %d: write the file with npm 7 or later: npm install --package-lock-only", file, l.Version)
	}
	root, err := l.root(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if entry := m.differs(root); entry != "" {
		return nil, fmt.Errorf("%s does not fit %s (%s): run npm install --package-lock-only", file, manifestFile, entry)
	}
	out, err := withoutHosts(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := json.Unmarshal(out, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := errors.Join(l.check(), l.lacksOptional()); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return out, nil
}

// differs names the first entry in which the lock's copy of a package.json differs from m; "" for
// none.
func (m manifest) differs(root manifest) string {
	required := maps.Clone(m.Dependencies)
	maps.DeleteFunc(required, func(name, _ string) bool { // npm moves the entry
		_, optional := m.Optional[name]
		return optional
	})
	return cmp.Or(
		differentEntry("dependencies", required, m.Dependencies, root.Dependencies),
		differentEntry("optionalDependencies", m.Optional, m.Optional, root.Optional),
		differentEntry("devDependencies", m.Dev, m.Dev, root.Dev),
	)
}

// differentEntry names the first entry of the list required that locked lacks or has otherwise, or
// the first entry of locked that listed lacks.
func differentEntry(list string, required, listed, locked map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(required)) {
		if got, ok := locked[name]; !ok || got != required[name] {
			return fmt.Sprintf("%s: %q", list, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(locked)) {
		if _, ok := listed[name]; !ok {
			return fmt.Sprintf("%s: %q is missing", list, name)
		}
	}
	return ""
}

// requested returns a package.json for the template's request and, if npm's own lock is beside the
// file, the lock.
func requested(r *template.Requests) (manifest, json.RawMessage, error) {
	switch path.Base(r.File) {
	case manifestFile:
		m, err := parseManifest(r.File, r.Text)
		if raw := r.Beside[path.Join(path.Dir(r.File), lockFile)]; err == nil && raw != nil {
			lock, err := projectLock(lockFile, raw, m)
			return m, lock, err
		}
		return m, nil, err
	case lockFile:
		m, err := parseManifest(manifestFile, r.Beside[path.Join(path.Dir(r.File), manifestFile)])
		if err != nil {
			return m, nil, err
		}
		lock, err := projectLock(r.File, r.Text, m)
		return m, lock, err
	}
	m := manifest{Dependencies: map[string]string{}}
	for _, text := range r.List {
		name, wanted := text, "*"
		if at := strings.LastIndexByte(text, '@'); at > 0 {
			name, wanted = text[:at], text[at+1:]
		}
		m.Dependencies[name] = wanted
	}
	return m, nil, nil
}

// root returns the lock's entry of the project itself.
func (l *packageLock) root(raw []byte) (manifest, error) {
	var own struct {
		ByPlace map[string]json.RawMessage `json:"packages"`
	}
	var m manifest
	if err := json.Unmarshal(raw, &own); err != nil {
		return m, err
	}
	if own.ByPlace[""] == nil {
		return m, errors.New("packages has no entry for the project")
	}
	return m, json.Unmarshal(own.ByPlace[""], &m)
}
