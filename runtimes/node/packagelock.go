package node

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/fre-engine/fre/store"
)

// packageLock holds the read members of npm's package-lock.json, version 3 (npm help
// package-lock-json).
type packageLock struct {
	Version int                      `json:"lockfileVersion"`
	ByPlace map[string]lockedPackage `json:"packages"` // by place: "node_modules/a/node_modules/b"; "" is the function
}

type lockedPackage struct {
	Name          string          `json:"name"` // if it differs from the place's name
	Version       string          `json:"version"`
	Integrity     string          `json:"integrity"` // "sha512-…", perhaps several hashes
	Link          bool            `json:"link"`
	InBundle      bool            `json:"inBundle"` // included in its parent's archive
	Optional      bool            `json:"optional"`
	Dev           bool            `json:"dev"`
	DevOptional   bool            `json:"devOptional"` // needed by both dev and optional packages
	Extraneous    bool            `json:"extraneous"`
	InstallScript bool            `json:"hasInstallScript"`
	Bin           json.RawMessage `json:"bin"` // a path, or paths by command
	OS            []string        `json:"os"`
	CPU           []string        `json:"cpu"`
	Libc          []string        `json:"libc"`
	Engines       json.RawMessage `json:"engines"` // ranges by program; old packages have a list

	// Dependencies by name.
	Dependencies         map[string]json.RawMessage `json:"dependencies"`
	OptionalDependencies map[string]json.RawMessage `json:"optionalDependencies"`
	PeerDependencies     map[string]json.RawMessage `json:"peerDependencies"`
}

var placePattern = regexp.MustCompile(`^(node_modules/(@[A-Za-z0-9~._-]+/)?[A-Za-z0-9~_-][A-Za-z0-9~._-]*)(/node_modules/(@[A-Za-z0-9~._-]+/)?[A-Za-z0-9~_-][A-Za-z0-9~._-]*)*$`)

// check refuses entries that no lock of registry packages holds. The lock may come from any source,
// so places are not used as paths before.
func (l *packageLock) check() error {
	if l.Version != 3 {
		return fmt.Errorf("lockfileVersion %d, want 3", l.Version)
	}
	for place, p := range l.ByPlace {
		switch {
		case place == "":
		case !placePattern.MatchString(place):
			return fmt.Errorf("bad place %q", place)
		case p.Link:
			return fmt.Errorf("%s is a link: only packages from a registry are supported", place)
		case p.Integrity == "" && !p.InBundle:
			return fmt.Errorf("%s has no integrity: only packages from a registry are supported", place)
		case !p.InBundle:
			if _, err := strongest(p.Integrity); err != nil {
				return fmt.Errorf("%s: %w", place, err)
			}
		}
	}
	return nil
}

// places lists the packages to install here, parents first.
func (l *packageLock) places() []string {
	var out []string
	for _, place := range slices.Sorted(maps.Keys(l.ByPlace)) {
		p := l.ByPlace[place]
		if place != "" && !p.InBundle && !p.Dev && !p.Extraneous && (!p.optional() || p.here()) {
			out = append(out, place)
		}
	}
	return out
}

func (p lockedPackage) optional() bool { return p.Optional || p.DevOptional }

// here reports whether a package is for this kind of machine.
func (p lockedPackage) here() bool {
	return allows(p.OS, "linux") && allows(p.CPU, architecture()) && allows(p.Libc, "glibc")
}

// architecture is node's name for the host's.
func architecture() string {
	return cmp.Or(map[string]string{"amd64": "x64", "386": "ia32"}[runtime.GOARCH], runtime.GOARCH)
}

func allows(list []string, value string) bool {
	if slices.Contains(list, "!"+value) {
		return false
	}
	return slices.Contains(list, value) || !slices.ContainsFunc(list, func(s string) bool { return !strings.HasPrefix(s, "!") })
}

func (p lockedPackage) name(place string) string {
	if p.Name != "" {
		return p.Name
	}
	return strings.TrimPrefix(strings.TrimPrefix(place, parent(place)+"/"), "node_modules/")
}

// key names a package's part. It includes the lock's list of programs, because these files become
// executable.
func (p lockedPackage) key(place string) string {
	key := fmt.Sprintf("npm:%s@%s:%s", p.name(place), p.Version, p.Integrity)
	if programs := slices.Sorted(maps.Keys(p.programs())); len(programs) > 0 {
		key += fmt.Sprintf(":%x", sha256.Sum256(fmt.Appendf(nil, "%q", programs)))
	}
	return key
}

func (p lockedPackage) part(place string) store.Part {
	return store.Part{Kind: "npm", Name: p.name(place), Version: p.Version, Prefix: place, Hash: p.hash()}
}

// hash is the hash that verified the package's archive.
func (p lockedPackage) hash() string {
	pinned, err := strongest(p.Integrity)
	if err != nil {
		return ""
	}
	return pinned.algorithm + ":" + hex.EncodeToString(pinned.want)
}

// programs returns the paths in the archive that the package offers as commands.
func (p lockedPackage) programs() map[string]bool {
	out := map[string]bool{}
	var one string
	var many map[string]string
	if json.Unmarshal(p.Bin, &one) == nil && one != "" {
		out[path.Clean(one)] = true
	} else if json.Unmarshal(p.Bin, &many) == nil {
		for _, name := range many {
			out[path.Clean(name)] = true
		}
	}
	return out
}

// parent is the place of the package whose node_modules holds a place; "" is the function.
func parent(place string) string {
	i := strings.LastIndex("/"+place, "/node_modules/")
	return place[:max(i-1, 0)]
}

// lacksLibc returns the places of optional packages for this kind of machine whose C library the
// lock leaves out.
func (l *packageLock) lacksLibc() []string {
	return slices.DeleteFunc(l.places(), func(place string) bool {
		p := l.ByPlace[place]
		return !p.optional() || len(p.Libc) > 0 || !slices.Contains(p.OS, "linux") || !placePattern.MatchString(place)
	})
}

// withoutHosts drops the members that hold addresses, and the part for npm 6 (version 2).
func withoutHosts(raw []byte) (json.RawMessage, error) {
	var l map[string]json.RawMessage
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, fmt.Errorf("package-lock.json: %w", err)
	}
	var packages map[string]map[string]json.RawMessage
	if err := json.Unmarshal(l["packages"], &packages); err != nil {
		return nil, fmt.Errorf("package-lock.json: packages: %w", err)
	}
	for _, p := range packages {
		for _, member := range []string{"resolved", "funding", "deprecated", "license"} {
			delete(p, member)
		}
	}
	delete(l, "dependencies")
	l["lockfileVersion"] = json.RawMessage("3")
	var err error
	if l["packages"], err = json.Marshal(packages); err != nil {
		return nil, err
	}
	return json.Marshal(l)
}

var programPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// commands returns the programs in bin of the package name, with their files.
func commands(name string, bin json.RawMessage) (map[string]string, error) {
	all := map[string]string{}
	if err := json.Unmarshal(bin, &all); err != nil {
		var one string
		if err := json.Unmarshal(bin, &one); err != nil {
			return nil, err
		}
		all = map[string]string{path.Base(name): one}
	}
	out := map[string]string{}
	for program, file := range all {
		// A file elsewhere is not a program of the package.
		file = path.Clean(file)
		if programPattern.MatchString(program) && !path.IsAbs(file) && file != ".." && !strings.HasPrefix(file, "../") {
			out[program] = file
		}
	}
	return out, nil
}

// finds reports whether a package at place finds another package by name, in its node_modules or in
// a parent's.
func (l *packageLock) finds(place, name string) bool {
	for at := place; ; at = parent(at) {
		if _, ok := l.ByPlace[path.Join(at, "node_modules", name)]; ok || at == "" {
			return ok
		}
	}
}

// wordPattern splits a package's name: "@rollup/rollup-linux-x64-gnu".
var wordPattern = regexp.MustCompile(`[a-z0-9]+`)

// forHere guesses from an optional package's name whether it is for this kind of machine. The lock
// lacks the entry with the certain answer.
func forHere(name string) bool {
	words := wordPattern.FindAllString(strings.ReplaceAll(strings.ToLower(name), "x86_64", "x64"), -1)
	has := func(either ...string) bool {
		return slices.ContainsFunc(either, func(w string) bool { return slices.Contains(words, w) })
	}
	machine := []string{architecture()}
	if architecture() == "x64" {
		machine = append(machine, "64", "amd64")
	}
	return has("linux") && has(machine...) && !has("musl", "android", "openharmony")
}

// lacksOptional refuses a lock from another machine whose npm left out the optional packages for
// this machine (npm/cli, issue 4828): a dependent would fail at its first call.
func (l *packageLock) lacksOptional() error {
	for _, place := range slices.Sorted(maps.Keys(l.ByPlace)) {
		p := l.ByPlace[place]
		if place == "" || p.Dev || p.optional() && !p.here() {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(p.OptionalDependencies)) {
			if forHere(name) && !l.finds(place, name) {
				return fmt.Errorf("lacks %s, needed by %s %s on linux, %s: npm left the package out on another platform. Delete node_modules and the lock and run npm install, or run npm install --save-optional %s",
					name, p.name(place), p.Version, architecture(), name)
			}
		}
	}
	return nil
}
