package image

import "encoding/json"

// LockFile is the name of the lock file beside fret.yaml.
const LockFile = "fret.lock"

// Lock pins what a build resolved: names, versions and hashes, no host names.
type Lock struct {
	Version int             `json:"version"` // 1
	Base    LockedBase      `json:"base"`
	Pip     *LockedPip      `json:"pip,omitempty"`
	NPM     *LockedNPM      `json:"npm,omitempty"`
	Unknown json.RawMessage `json:"-"`
}

// LockedBase names the base environment an image was built on.
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
