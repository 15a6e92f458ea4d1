package image

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/template"
)

// LockError says that a build with BuildOptions.Locked would change the lock.
type LockError struct {
	Drift []string // sections that do not answer the template
}

func (e *LockError) Error() string {
	return fmt.Sprintf("%s does not fit the template: %s: build without --locked, check the changes of the file, and keep the file with the template", LockFile, strings.Join(e.Drift, "; "))
}

// Code returns [failure.BuildFailed].
func (e *LockError) Code() failure.Code { return failure.BuildFailed }

// drift compares l, the lock on disk, with next, the sections of l that answer the template, and
// with the sections that the template needs. The base is only a record and not compared: Debian's
// archive does not keep old packages.
func (l *Lock) drift(next *Lock, asked []string) error {
	if l == nil {
		return &LockError{[]string{"the file is missing"}}
	}
	old, err := l.sections()
	if err != nil {
		return err
	}
	now, err := next.sections()
	if err != nil {
		return err
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if !bytes.Equal(old[name], now[name]) {
			out = append(out, name+": locked for another request")
		}
	}
	for _, name := range asked {
		if old[name] == nil {
			out = append(out, name+": not locked")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if old[name] == nil && !slices.Contains(asked, name) {
			out = append(out, name+": not locked")
		}
	}
	if out == nil {
		return nil
	}
	return &LockError{out}
}

// sections returns the lock's members, without version and base.
func (l *Lock) sections() (map[string]json.RawMessage, error) {
	raw, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	var out map[string]json.RawMessage
	err = json.Unmarshal(raw, &out)
	delete(out, "version")
	delete(out, "base")
	return out, err
}

// prune drops the sections of sites that do not answer the template.
func (l *Lock) prune(t *template.Template) {
	maps.DeleteFunc(l.Sites, func(site string, s Section) bool { return !s.Answers(t.Packages.Of(site)) })
}

// GitFor returns the git section if it answers the template's request, else nil. l may be nil.
func (l *Lock) GitFor(t *template.Template) *LockedGit {
	if l == nil || l.Git == nil || t.Code.Git == nil || l.Git.Request != t.Code.Git.Key() {
		return nil
	}
	return l.Git
}

// DebFor returns the section of Debian packages if it answers the template's request on a base
// environment with the same packages, else nil. l may be nil.
func (l *Lock) DebFor(t *template.Template, base LockedBase) *LockedDeb {
	if l == nil || l.Deb == nil || !slices.Equal(l.Deb.Request, t.Packages.Of("deb").Key()) || !slices.Equal(l.Deb.Libs, t.Libs) ||
		l.Base.Name != base.Name || !maps.Equal(l.Base.Packages, base.Packages) {
		return nil
	}
	return l.Deb
}
