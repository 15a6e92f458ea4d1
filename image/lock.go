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
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"

	"github.com/fre-engine/fre/internal/bom"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// LockFile is the name of the lock file beside fret.yaml.
const LockFile = "fret.lock"

const (
	lockVersion  = 1
	maxLockBytes = 16 << 20 // npm's lock of a thousand packages has about 1 MiB
)

// Lock pins the names, versions and hashes that a build resolved; it has no host names.
//
// A section is valid while its Request equals the template's ([template.Requests.Key]): see
// [Lock.PipFor] and the like.
type Lock struct {
	Version  int             `json:"version"` // 1
	Base     LockedBase      `json:"base"`
	Pip      *LockedPip      `json:"pip,omitempty"`
	NPM      *LockedNPM      `json:"npm,omitempty"`
	Maven    *LockedMaven    `json:"maven,omitempty"`
	Composer *LockedComposer `json:"composer,omitempty"`
	Gem      *LockedGem      `json:"gem,omitempty"`
	Deb      *LockedDeb      `json:"deb,omitempty"`
	Git      *LockedGit      `json:"git,omitempty"`
	Build    *Lock           `json:"build,omitempty"` // packages of code.build, together with the function's own
}

// LockedBase names the base environment of an image. For FRE's own bases it is only a record,
// because Debian's archive keeps no old versions.
type LockedBase struct {
	Name string `json:"name"`
	// Digest, for a base from a registry, is the registry's digest, which is pinned.
	Digest   store.Digest      `json:"digest,omitempty"`
	Packages map[string]string `json:"packages"` // Debian package → version
}

// LockedPip is valid while Request is the
// [template.Requests.Key] of packages.pip and Index is
// packages.pip_index.
type LockedPip struct {
	Request  []string          `json:"request"`
	Index    map[string]string `json:"index,omitempty"`
	Packages []LockedPackage   `json:"packages"`
}

// LockedNPM is valid while Request is the
// [template.Requests.Key] of packages.npm. PackageLock is npm's own
// package-lock.json (v3) without "resolved" members.
type LockedNPM struct {
	Request     []string        `json:"request"`
	PackageLock json.RawMessage `json:"package_lock"`
}

// LockedMaven is valid while Request is the
// [template.Requests.Key] of packages.maven. A package is a jar,
// in the order of Maven's class path, named group:artifact or group:artifact:classifier, with one
// hash. Provided are jars for the compiler only; no image has them.
type LockedMaven struct {
	Request  []string        `json:"request"`
	Packages []LockedPackage `json:"packages"`
	Provided []LockedPackage `json:"provided,omitempty"`
}

// LockedComposer is valid while Request is the
// [template.Requests.Key] of packages.composer. A package's
// hash is the hash of its tree.
type LockedComposer struct {
	Request  []string        `json:"request"`
	Packages []LockedPackage `json:"packages"`
}

// LockedGem is valid while Request is the
// [template.Requests.Key] of packages.gem. A package follows the
// packages it needs. The version of a platform's package ends in the platform, as in
// 1.18.0-x86_64-linux-gnu. The only hash is the archive's.
type LockedGem struct {
	Request  []string        `json:"request"`
	Packages []LockedPackage `json:"packages"`
}

// LockedGit is valid while Request is the template's code.git.
type LockedGit struct {
	Request string `json:"request"` // digest of URL, ref and submodules
	Commit  string `json:"commit"`  // 40 or 64 hexadecimal digits
}

// LockedPackage pins one package version.
type LockedPackage struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Hashes  []string `json:"hashes"` // "sha256:…", one for each acceptable file
	// Source, for pip, is the file name of the source distribution to build. The only hash is its.
	Source string `json:"source,omitempty"`

	// Requires are the packages that build Source, sorted by name. Empty if the build needs no
	// packages, or if an older FRE wrote the lock without them.
	Requires []LockedPackage `json:"requires,omitempty"`
}

var (
	hashPattern       = lazyregexp.New(`^sha256:[0-9a-f]{64}$`)
	lockedNamePattern = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	sourcePattern     = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.(tar\.gz|zip)$`)
	lockedJarPattern  = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*){1,2}$`)
	commitPattern     = lazyregexp.New(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	debName           = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.+-]{0,254}$`)
	debVersion        = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.+:~-]{0,254}$`)
	composerName      = lazyregexp.New(`^[a-z0-9]([_.-]?[a-z0-9]+)*/[a-z0-9](([_.]|-{1,2})?[a-z0-9]+)*$`)
	composerVersion   = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.+_/#@-]{0,127}$`)
	lockedVersion     = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,127}$`)
)

// PipFor returns the pip section if it answers the template's request, else nil. l may be nil.
func (l *Lock) PipFor(t *template.Template) *LockedPip {
	if l == nil || l.Pip == nil || !slices.Equal(l.Pip.Request, t.Packages.Of("pip").Key()) || !maps.Equal(l.Pip.Index, t.Packages.Of("pip").Index) {
		return nil
	}
	return l.Pip
}

// NPMFor returns the npm section if it answers the template's request, else nil. l may be nil.
func (l *Lock) NPMFor(t *template.Template) *LockedNPM {
	if l == nil || l.NPM == nil || !slices.Equal(l.NPM.Request, t.Packages.Of("npm").Key()) {
		return nil
	}
	return l.NPM
}

// MavenFor returns the maven section if it answers the template's request, else nil. l may be nil.
func (l *Lock) MavenFor(t *template.Template) *LockedMaven {
	if l == nil || l.Maven == nil || !slices.Equal(l.Maven.Request, t.Packages.Of("maven").Key()) {
		return nil
	}
	return l.Maven
}

// ComposerFor returns the composer section if it answers the template's request, else nil. l may be
// nil.
func (l *Lock) ComposerFor(t *template.Template) *LockedComposer {
	if l == nil || l.Composer == nil || !slices.Equal(l.Composer.Request, t.Packages.Of("composer").Key()) {
		return nil
	}
	return l.Composer
}

// GemFor returns the gem section if it answers the template's request, else nil. l may be nil.
func (l *Lock) GemFor(t *template.Template) *LockedGem {
	if l == nil || l.Gem == nil || !slices.Equal(l.Gem.Request, t.Packages.Of("gem").Key()) {
		return nil
	}
	return l.Gem
}

// GitFor returns the git section if it answers the template's request, else nil. l may be nil.
func (l *Lock) GitFor(t *template.Template) *LockedGit {
	if l == nil || l.Git == nil || t.Code.Git == nil || l.Git.Request != t.Code.Git.Key() {
		return nil
	}
	return l.Git
}

// ReadLock reads dir's lock file. Without a lock file it returns nil.
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

// readSmall reads a regular file of at most most bytes below dir. Errors: fs.ErrNotExist;
// [template.Errors].
func readSmall(dir *os.Root, name string, most int64) ([]byte, error) {
	f, err := openRegular(dir, name)
	if err != nil {
		return nil, FileFault(name, err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(src)) > most {
		return nil, template.Errors{{File: name, Message: "the file has more than " + template.FormatBytes(most)}}
	}
	return bom.Decode(src), nil
}

// ParseLock reads a lock strictly: it refuses unknown members, bad hashes and host names. Errors
// are [template.Errors] with name as the file.
func ParseLock(name string, src []byte) (*Lock, error) {
	fail := func(format string, args ...any) error {
		return template.Errors{{File: name, Message: fmt.Sprintf(format, args...) + "; delete the file to resolve again"}}
	}
	if len(src) > maxLockBytes {
		return nil, fail("the lock has %d bytes: the limit is %s", len(src), template.FormatBytes(maxLockBytes))
	}
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.DisallowUnknownFields()
	var l Lock
	if err := dec.Decode(&l); err != nil {
		at := dec.InputOffset()
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			at = syntax.Offset
		case errors.As(err, &kind):
			at = kind.Offset
		}
		return nil, template.Errors{template.ErrorAt(name, src, at, err.Error()+"; delete the file to resolve again")}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fail("several JSON values")
	}
	if err := l.check(); err != nil {
		return nil, fail("%s", err)
	}
	return &l, nil
}

func (l *Lock) check() error {
	if l.Version != lockVersion {
		return fmt.Errorf("unknown version %d of the lock format: the engine knows version %d", l.Version, lockVersion)
	}
	if l.Pip != nil {
		for _, p := range l.Pip.Packages {
			if err := p.checkPip(); err != nil {
				return err
			}
		}
		for name, index := range l.Pip.Index {
			if !lockedNamePattern.MatchString(name) || !template.ValidName(index) {
				return fmt.Errorf("package %q: bad index %q", name, index)
			}
		}
	}
	if l.Build != nil {
		if l.Build.Build != nil {
			return errors.New("build: holds another build")
		}
		if err := l.Build.check(); err != nil {
			return fmt.Errorf("build: %w", err)
		}
	}
	if l.Maven != nil {
		for _, p := range slices.Concat(l.Maven.Packages, l.Maven.Provided) {
			if !lockedJarPattern.MatchString(p.Name) || !lockedVersion.MatchString(p.Version) || len(p.Hashes) != 1 || !hashPattern.MatchString(p.Hashes[0]) {
				return fmt.Errorf("bad jar %q version %q with hashes %q", p.Name, p.Version, p.Hashes)
			}
		}
	}
	if l.Composer != nil {
		for _, p := range l.Composer.Packages {
			if !composerName.MatchString(p.Name) || !composerVersion.MatchString(p.Version) {
				return fmt.Errorf("composer: bad package %q version %q", p.Name, p.Version)
			}
			if len(p.Hashes) != 1 || !hashPattern.MatchString(p.Hashes[0]) {
				return fmt.Errorf("composer: package %s %s: want one hash, have %q", p.Name, p.Version, p.Hashes)
			}
		}
	}
	if l.Gem != nil {
		for _, p := range l.Gem.Packages {
			if !lockedNamePattern.MatchString(p.Name) || !lockedVersion.MatchString(p.Version) || len(p.Hashes) != 1 || !hashPattern.MatchString(p.Hashes[0]) {
				return fmt.Errorf("gem: bad package %q version %q with hashes %q", p.Name, p.Version, p.Hashes)
			}
		}
	}
	if l.Git != nil && (!hashPattern.MatchString(l.Git.Request) || !commitPattern.MatchString(l.Git.Commit)) {
		return fmt.Errorf("git: bad request %q or commit %q", l.Git.Request, l.Git.Commit)
	}
	if l.Base.Digest != "" && !hashPattern.MatchString(string(l.Base.Digest)) {
		return fmt.Errorf("base %q: bad digest %q", l.Base.Name, l.Base.Digest)
	}
	if l.Deb != nil {
		if err := l.Deb.check(); err != nil {
			return err
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

func (p *LockedPackage) checkPip() error {
	if !lockedNamePattern.MatchString(p.Name) || !lockedVersion.MatchString(p.Version) {
		return fmt.Errorf("bad package %q version %q", p.Name, p.Version)
	}
	if len(p.Hashes) == 0 {
		return fmt.Errorf("package %s %s has no hash", p.Name, p.Version)
	}
	if p.Source != "" && (!sourcePattern.MatchString(p.Source) || len(p.Hashes) != 1) {
		return fmt.Errorf("package %s %s: bad source %q with %d hashes", p.Name, p.Version, p.Source, len(p.Hashes))
	}
	for _, h := range p.Hashes {
		if !hashPattern.MatchString(h) {
			return fmt.Errorf("package %s %s: bad hash %q", p.Name, p.Version, h)
		}
	}
	if len(p.Requires) > 0 && p.Source == "" {
		return fmt.Errorf("package %s %s has build requirements but is not built from source", p.Name, p.Version)
	}
	for _, r := range p.Requires {
		if r.Source != "" {
			return fmt.Errorf("package %s %s: the build requirement %s is a source distribution", p.Name, p.Version, r.Name)
		}
		if err := r.checkPip(); err != nil {
			return fmt.Errorf("package %s %s: build requirement: %w", p.Name, p.Version, err)
		}
	}
	return nil
}

// canonical returns the packages in the order of the file.
func canonical(packages []LockedPackage) []LockedPackage {
	out := slices.Clone(packages)
	for i, p := range out {
		hashes := slices.Clone(p.Hashes)
		slices.Sort(hashes)
		out[i].Hashes, out[i].Requires = slices.Compact(hashes), canonical(p.Requires)
	}
	slices.SortFunc(out, func(a, b LockedPackage) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
	})
	return out
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

// Encode returns the file's bytes: equal locks give equal bytes.
func (l *Lock) Encode() ([]byte, error) {
	out := *l
	out.Version = lockVersion
	if out.Base.Packages == nil {
		out.Base.Packages = map[string]string{}
	}
	if l.Pip != nil {
		out.Pip = &LockedPip{Request: l.Pip.Request, Index: l.Pip.Index, Packages: canonical(l.Pip.Packages)}
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
