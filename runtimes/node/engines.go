package node

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// warn reports problems of the packages at places, from the lock alone, so a build with all
// packages in the store reports them too. Like npm it refuses a package whose "engines" exclude the
// base's Node only if the host's npmrc says engine-strict.
func (s *site) warn(l *packageLock, places []string) error {
	version := upstream(s.step.Debian["nodejs"])
	for _, place := range places {
		p := l.ByPlace[place]
		wanted := p.engine()
		if version != nil && !allowsVersion(wanted, version) {
			words := fmt.Sprintf("needs Node %s, but the base has %s: use another version of the package, or a base with another Node (node:RELEASE)", wanted, version)
			if s.engineStrict() {
				return &template.FieldError{Field: "packages.npm", Message: fmt.Sprintf("%s %s %s (engine-strict)", p.name(place), p.Version, words)}
			}
			s.step.Report(image.Progress{Step: "warning", Name: p.name(place) + " " + p.Version, Message: words})
		}
		if p.InstallScript && !slices.Contains(s.allowed, p.name(place)) {
			s.step.Report(image.Progress{Step: "warning", Name: p.name(place), Message: "has an install script that FRE did not run: if the package needs the script, add the package to packages.npm_scripts"})
		}
	}
	return nil
}

// engine is the range of Node's versions for a package; "" for any.
func (p lockedPackage) engine() string {
	var engines map[string]string
	if json.Unmarshal(p.Engines, &engines) != nil { // a list, as before npm 1
		return ""
	}
	return engines["node"]
}

var upstreamVersion = regexp.MustCompile(`^(?:\d+:)?(\d+\.\d+\.\d+)`)

// upstream returns Node's version from the version of its Debian package: "18.20.4+dfsg-1~deb12u1";
// nil if malformed.
func upstream(debian string) *semver.Version {
	m := upstreamVersion.FindStringSubmatch(debian)
	if m == nil {
		return nil
	}
	v, err := semver.NewVersion(m[1])
	if err != nil {
		return nil
	}
	return v
}

// allowsVersion reports whether a range has a version; a malformed range has all.
func allowsVersion(wanted string, v *semver.Version) bool {
	if strings.TrimSpace(wanted) == "" {
		return true
	}
	c, err := semver.NewConstraint(wanted)
	return err != nil || c.Check(v)
}

var engineStrict = regexp.MustCompile(`(?mi)^\s*engine-strict\s*=\s*"?true"?\s*$`)

func (s *site) engineStrict() bool {
	rc, err := npmrc(s.step.Settings)
	return err == nil && engineStrict.Match(rc)
}
