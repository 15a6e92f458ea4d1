// Package node builds and starts functions written for Node.js: a bootstrap
// that speaks the channel, and packages resolved and installed by npm.
package node

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

var (
	//go:embed bootstrap.js
	bootstrap []byte
	//go:embed limits.js
	limits []byte
)

// Runtime is the base "node". It implements image.Runtime.
type Runtime struct {
	Environment image.BaseSpec
	Tools       []string // Debian packages to add for npm
}

// Name is "node".
func (Runtime) Name() string { return "node" }

// Base returns Environment.
func (r Runtime) Base() image.BaseSpec { return r.Environment }

// FinishBase has nothing to do.
func (Runtime) FinishBase(context.Context, *image.Step) ([]store.Part, error) { return nil, nil }

// Bootstrap returns the program that loads the handler, and what it requires.
func (Runtime) Bootstrap() map[string][]byte {
	return map[string][]byte{"bootstrap.js": bootstrap, "limits.js": limits}
}

// handlerPattern is file.export, the file without its extension.
var handlerPattern = regexp.MustCompile(`^[^\x00-\x1f./][^\x00-\x1f]*\.[\pL_$][\pL\pN_$]*$`)

// Command runs the bootstrap.
func (Runtime) Command(t *image.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) || slices.Contains(strings.Split(t.Handler, "/"), "..") {
		return nil, nil, &image.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not file.export: write index.handle for what index.js exports as handle", t.Handler)}
	}
	return append(command(t), t.Handler), append(environment(),
		fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency))), nil
}

func command(t *image.Template) []string {
	args := []string{"/usr/bin/node"}
	if !heapSize.MatchString(t.Env["NODE_OPTIONS"]) {
		args = append(args, fmt.Sprintf("--max-old-space-size=%d", heapMiB(t.Resources.MemoryBytes)))
	}
	return append(args, "/opt/fre/bootstrap.js")
}

func environment() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8", "NODE_ENV=production",
		"FRE_CHANNEL=3",
	}
}

// Shell is the bootstrap without a handler; functions with different limits of
// memory do not share it. Node reads its options, certificates and the number of
// its threads at its start.
func (Runtime) Shell(t *image.Template, env []string) *image.Shell {
	s := &image.Shell{Args: command(t), Env: environment(), Mounts: []string{"/function", "/node_modules"}}
	if !s.Fits(env, []string{"ICU_", "NODE_", "SSL_", "UV_"}, []string{"NODE_ENV"}) {
		return nil
	}
	return s
}

// heapSize matches what a template says itself about the heap's limit.
var heapSize = regexp.MustCompile(`--max[-_]old[-_]space[-_]size`)

// heapMiB is the limit of V8's heap in a sandbox with so much memory: three
// quarters, and 64 MiB left for the rest of node, but no less than half. V8 would
// go by the host's memory, so that the sandbox's limit killed the function before
// a full collection, or an error that says where, could.
func heapMiB(memory int64) int64 {
	return max(memory/2, min(memory/4*3, memory-64<<20)) >> 20
}

// packageLock is what is read of npm's package-lock.json, version 3
// (npm help package-lock-json).
type packageLock struct {
	Version  int                      `json:"lockfileVersion"`
	Packages map[string]lockedPackage `json:"packages"` // by place: "node_modules/a/node_modules/b"; "" is the function
}

type lockedPackage struct {
	Name          string   `json:"name"` // where it is not the place's own
	Version       string   `json:"version"`
	Integrity     string   `json:"integrity"` // "sha512-…" and perhaps others
	Link          bool     `json:"link"`
	InBundle      bool     `json:"inBundle"` // comes within its parent's archive
	Optional      bool     `json:"optional"`
	Dev           bool     `json:"dev"`
	InstallScript bool     `json:"hasInstallScript"`
	OS            []string `json:"os"`
	CPU           []string `json:"cpu"`
	Libc          []string `json:"libc"`
}

// Packages makes one part per package version, placed below /node_modules
// where the function's files find it. Install scripts do not run.
func (r Runtime) Packages(ctx context.Context, step *image.Step, t *image.Template, lock *image.Lock) ([]store.Part, error) {
	if len(t.Packages.NPM) == 0 {
		return nil, nil
	}
	site := &site{step: step, tools: r.Tools, requests: t.Packages.NPM}
	if lock.NPM == nil {
		step.Report(image.Event{Step: "packages", Message: "resolve"})
		raw, err := site.resolve(ctx)
		if err != nil {
			return nil, err
		}
		lock.NPM = &image.LockedNPM{Request: slices.Clone(t.Packages.NPM), PackageLock: raw}
	}
	var l packageLock
	if err := json.Unmarshal(lock.NPM.PackageLock, &l); err != nil {
		return nil, fmt.Errorf("%s: package_lock: %w", image.LockFile, err)
	}
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("%s: package_lock: %w", image.LockFile, err)
	}
	places := l.places()
	parts, complete := site.find(&l, places)
	if complete {
		return parts, nil
	}
	return site.install(ctx, lock.NPM.PackageLock, &l, places)
}

var placePattern = regexp.MustCompile(`^(node_modules/(@[A-Za-z0-9~._-]+/)?[A-Za-z0-9~_-][A-Za-z0-9~._-]*)(/node_modules/(@[A-Za-z0-9~._-]+/)?[A-Za-z0-9~_-][A-Za-z0-9~._-]*)*$`)

// check refuses what a lock of packages from a registry does not hold. The
// lock may come from anywhere, so that places are no paths before.
func (l *packageLock) check() error {
	if l.Version != 3 {
		return fmt.Errorf("lockfileVersion %d, want 3", l.Version)
	}
	for place, p := range l.Packages {
		switch {
		case place == "":
		case !placePattern.MatchString(place):
			return fmt.Errorf("bad place %q", place)
		case p.Link:
			return fmt.Errorf("%s is a link: only packages from a registry are supported", place)
		case p.Integrity == "" && !p.InBundle:
			return fmt.Errorf("%s has no integrity: only packages from a registry are supported", place)
		}
	}
	return nil
}

// places lists, parents first, what has to be installed here.
func (l *packageLock) places() []string {
	var out []string
	for _, place := range slices.Sorted(maps.Keys(l.Packages)) {
		p := l.Packages[place]
		if place != "" && !p.InBundle && !p.Dev && (!p.Optional || p.here()) {
			out = append(out, place)
		}
	}
	return out
}

// here says whether an optional package is for this kind of machine.
func (p lockedPackage) here() bool {
	cpu := map[string]string{"amd64": "x64", "386": "ia32"}[runtime.GOARCH]
	if cpu == "" {
		cpu = runtime.GOARCH
	}
	return allows(p.OS, "linux") && allows(p.CPU, cpu) && allows(p.Libc, "glibc")
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
	return place[strings.LastIndex(place, "node_modules/")+len("node_modules/"):]
}

func (p lockedPackage) key(place string) string {
	return fmt.Sprintf("npm:%s@%s:%s", p.name(place), p.Version, p.Integrity)
}

func (p lockedPackage) part(place string) store.Part {
	return store.Part{Kind: "npm", Name: p.name(place), Version: p.Version, Prefix: place}
}

// site is a registry seen from one build.
type site struct {
	step     *image.Step
	tools    []string
	requests []string
}

// find returns the parts the store has; complete says whether that is all.
func (s *site) find(l *packageLock, places []string) (parts []store.Part, complete bool) {
	for _, place := range places {
		p := l.Packages[place]
		part, ok := s.step.Store.Part(p.key(place))
		if !ok {
			return nil, false
		}
		part.Prefix = place // the same version may stand in several places
		parts = append(parts, part)
	}
	return parts, true
}

// npm runs one npm command at the bench, in its directory.
func (s *site) npm(ctx context.Context, b *install.Bench, cache string, args ...string) error {
	rootfs, err := s.step.Tools(ctx, "node", s.tools...)
	if err != nil {
		return err
	}
	shared := ""
	if cache != install.Private {
		shared = "npm"
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: rootfs, Network: true, Cache: shared,
		Env: []string{"npm_config_cache=" + cache, "npm_config_update_notifier=false", "NO_COLOR=1"},
		Args: append(append([]string{"/usr/bin/node", "/usr/bin/npm"}, args...),
			"--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"),
	})
	if err != nil {
		return failed(err, words)
	}
	return nil
}

// noAnswer is how npm says that the request, not the network, is at fault.
var noAnswer = regexp.MustCompile(`\b(E404|ETARGET|ERESOLVE|EINVALIDTAGNAME|EINVALIDPACKAGENAME|EBADENGINE|EBADPLATFORM|ENOVERSIONS)\b`)

// failed turns what npm said into the error the user sees.
func failed(err error, words string) error {
	lines := install.Lines(words, func(l string) bool {
		return l == "404" || strings.Contains(l, "A complete log of this run") || strings.Contains(l, "/_logs/") ||
			strings.HasSuffix(l, "Note that you can also install from a") || strings.HasSuffix(l, "tarball, folder, http url, or git url.")
	}, "npm ERR!", "npm error")
	words = strings.Join(lines, "\n")
	field := ""
	if noAnswer.MatchString(words) {
		field = "packages.npm"
	}
	if strings.Contains(words, "EINTEGRITY") {
		words += "\n(nothing was kept; if the package was published anew on purpose, delete " + image.LockFile + ")"
	}
	return install.Failed(err, field, words)
}

// bench prepares a directory for npm: package.json, and the host's npmrc as
// the user's own. The copy, which may hold credentials, goes with the scratch
// directory when the build ends.
func (s *site) bench() (*install.Bench, error) {
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	dependencies := map[string]string{}
	for _, r := range s.requests {
		name, wanted := r, "*"
		if at := strings.LastIndexByte(r, '@'); at > 0 {
			name, wanted = r[:at], r[at+1:]
		}
		dependencies[name] = wanted
	}
	data, err := json.Marshal(map[string]any{"name": "function", "version": "0.0.0", "private": true, "dependencies": dependencies})
	if err != nil {
		return nil, err
	}
	if err := b.Write("package.json", data); err != nil {
		return nil, err
	}
	if s.step.Settings.NpmRC != "" {
		rc, err := os.ReadFile(s.step.Settings.NpmRC)
		if err != nil {
			return nil, fmt.Errorf("npm's configuration: %w", err)
		}
		if err := b.Write(".npmrc", hostOnly.ReplaceAll(rc, nil)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// hostOnly are settings that name files of the host.
var hostOnly = regexp.MustCompile(`(?m)^\s*(cafile|nodedir|prefix|cache|globalconfig|userconfig|script-shell|shell|node-options)\s*=.*$`)

// resolve asks npm for a lock of everything requests need, without the places
// it would be fetched from: those are the host's configuration.
func (s *site) resolve(ctx context.Context) (json.RawMessage, error) {
	b, err := s.bench()
	if err != nil {
		return nil, err
	}
	if err := s.npm(ctx, b, "/run/npm", "install", "--package-lock-only", "--lockfile-version=3"); err != nil {
		return nil, err
	}
	raw, err := b.Read("package-lock.json")
	if err != nil {
		return nil, fmt.Errorf("npm install: %w", err)
	}
	return withoutHosts(raw)
}

// withoutHosts drops the members of the packages that hold addresses.
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
	var err error
	if l["packages"], err = json.Marshal(packages); err != nil {
		return nil, err
	}
	return json.Marshal(l)
}

// install runs npm ci and makes the parts.
func (s *site) install(ctx context.Context, raw json.RawMessage, l *packageLock, places []string) ([]store.Part, error) {
	b, err := s.bench()
	if err != nil {
		return nil, err
	}
	if err := b.Write("package-lock.json", bytes.TrimSpace(raw)); err != nil {
		return nil, err
	}
	s.step.Report(image.Event{Step: "packages", Message: "install", Total: int64(len(places))})
	if err := s.npm(ctx, b, install.Private, "ci"); err != nil {
		return nil, err
	}
	root, err := b.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var parts []store.Part
	for n, place := range places {
		p := l.Packages[place]
		part, ok := s.step.Store.Part(p.key(place))
		if ok {
			part.Prefix = place
			parts = append(parts, part)
			continue
		}
		if _, err := root.Lstat(place); errors.Is(err, fs.ErrNotExist) && p.Optional {
			continue // npm leaves out what this machine cannot run
		}
		if p.InstallScript {
			s.step.Report(image.Event{Step: "packages", Name: p.name(place), Message: "has an install script, which was not run"})
		}
		part, err := b.Put(ctx, p.key(place), p.part(place), place, func(rel string) bool { return l.elsewhere(place, rel) })
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		s.step.Report(image.Event{Step: "packages", Name: p.name(place) + " " + p.Version, Done: int64(n + 1), Total: int64(len(places))})
	}
	return parts, nil
}

// elsewhere says whether rel below place is not of place's own archive: the
// packages npm put below it, and npm's links to their programs.
func (l *packageLock) elsewhere(place, rel string) bool {
	if rel == "node_modules/.bin" {
		return true
	}
	p, ok := l.Packages[place+"/"+rel]
	return ok && !p.InBundle
}
