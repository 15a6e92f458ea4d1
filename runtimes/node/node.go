// Package node builds and starts functions written for Node.js: a bootstrap that speaks the
// channel, and packages that npm resolves and FRE fetches.
package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

var (
	//go:embed bootstrap.js
	bootstrap []byte
	//go:embed limits.js
	limits []byte
	//go:embed lambda.js
	lambda []byte
	//go:embed warm.js
	warm []byte
)

// Runtime is the runtime "node". It implements image.Runtime.
type Runtime struct{}

// Name is "node".
func (Runtime) Name() string { return "node" }

// Bases is FRE's base with the interpreter.
func (Runtime) Bases() []string { return []string{"node"} }

// Bootstrap returns the program that loads the handler, and its modules.
func (Runtime) Bootstrap() map[string][]byte {
	return map[string][]byte{"bootstrap.js": bootstrap, "lambda.js": lambda, "limits.js": limits, "warm.js": warm}
}

// handlerPattern is file.export, the file without its extension.
var handlerPattern = regexp.MustCompile(`^[^\x00-\x1f./][^\x00-\x1f]*\.[\pL_$][\pL\pN_$]*$`)

// Command runs the bootstrap.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) || slices.Contains(strings.Split(t.Handler, "/"), "..") {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not file.export: write index.handle for the export handle of index.js", t.Handler)}
	}
	return append(command(t), t.Handler), append(environment(),
		fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency))), nil
}

// Interpreter is the requirement on a base.
func (Runtime) Interpreter() image.Interpreter {
	return image.Interpreter{Name: "node", Version: []string{"--version"}, Least: "16"}
}

func command(t *template.Template) []string {
	return append(append([]string{"/usr/bin/node"}, options(t)...), "/opt/fre/bootstrap.js")
}

// options are node's options.
func options(t *template.Template) []string {
	if heapSize.MatchString(t.Env["NODE_OPTIONS"]) {
		return nil
	}
	return []string{fmt.Sprintf("--max-old-space-size=%d", heapMiB(t.Resources.MemoryBytes))}
}

func environment() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8", "NODE_ENV=production",
		"FRE_CHANNEL=3",
	}
}

// Parked is the bootstrap without a handler. Functions with different limits of memory do not share
// it, because node reads options, certificates and the number of threads only at the start.
func (Runtime) Parked(t *template.Template, env []string) *image.ParkedInterpreter {
	s := &image.ParkedInterpreter{Args: command(t), Env: environment(), Mounts: []string{"/function", "/node_modules"}}
	if !s.Fits(env, []string{"ICU_", "NODE_", "SSL_", "UV_"}, []string{"NODE_ENV"}) {
		return nil
	}
	return s
}

// heapSize matches a heap limit of the template's own.
var heapSize = regexp.MustCompile(`--max[-_]old[-_]space[-_]size`)

// heapMiB is the limit of V8's heap in a sandbox with memory bytes: three quarters, with 64 MiB
// left for the rest of node, but at least half. By default V8 follows the host's memory: the
// sandbox's limit would kill the function before a full collection, or an error with the location,
// could help.
func heapMiB(memory int64) int64 {
	return max(memory/2, min(memory/4*3, memory-64<<20)) >> 20
}

// packageLock holds the read members of npm's package-lock.json, version 3 (npm help
// package-lock-json).
type packageLock struct {
	Version  int                      `json:"lockfileVersion"`
	Packages map[string]lockedPackage `json:"packages"` // by place: "node_modules/a/node_modules/b"; "" is the function
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

// Site is the source of packages.npm: the registries of the host's own configuration, by way of
// npm. It implements image.Site.
type Site struct {
	Tools     []string      // Debian packages to add to the base "node" for npm
	Compilers []string      // and for native add-ons
	Patience  time.Duration // time limit of one install script; 0 is ten minutes
}

// Name is "npm".
func (Site) Name() string { return "npm" }

// Bases is FRE's base with node.
func (Site) Bases() []string { return []string{"node"} }

// Env is empty: node finds the packages itself.
func (Site) Env() []string { return nil }

// ProgramDirs is the directory of the links of [Site.Programs].
func (Site) ProgramDirs() []string { return []string{"/" + programsAt} }

// Packages makes one part for each package version, placed below /node_modules, for the function's
// files to find. It runs install scripts only of packages in packages.npm_scripts.
func (r Site) Packages(ctx context.Context, step *image.Step, t *template.Template, lock *image.Lock) ([]store.Part, error) {
	site := &site{step: step, tools: r.Tools, compilers: r.Compilers, patience: cmp.Or(r.Patience, 10*time.Minute)}
	locked, ok := lock.Sites[r.Name()].(*Locked)
	if !ok {
		step.Report(image.Progress{Step: "packages", Message: "resolve"})
		m, raw, err := site.request(t.Packages.Of("npm"))
		if err == nil && raw == nil {
			if err := image.Offline(ctx, "an answer to packages.npm"); err != nil {
				return nil, err
			}
			raw, err = site.resolve(ctx, m)
		}
		if err != nil {
			return nil, err
		}
		if raw, err = site.withLibc(ctx, raw); err != nil {
			return nil, err
		}
		locked = &Locked{Request: t.Packages.Of("npm").Key(), PackageLock: raw}
		lock.Sites[r.Name()] = locked
	}
	var l packageLock
	if err := json.Unmarshal(locked.PackageLock, &l); err != nil {
		return nil, &template.FieldError{Field: "packages.npm", Message: fmt.Sprintf("%s: package_lock: %s: delete the file to resolve again", image.LockFile, err)}
	}
	if err := l.check(); err != nil {
		return nil, &template.FieldError{Field: "packages.npm", Message: fmt.Sprintf("%s: package_lock: %s: delete the file to resolve again", image.LockFile, err)}
	}
	places := l.places()
	site.allowed = t.Packages.Of("npm").Scripts
	if err := site.warn(&l, places); err != nil {
		return nil, err
	}
	if len(t.Packages.Of("npm").Scripts) > 0 {
		return site.installScripted(ctx, &l, places, t.Packages.Of("npm").Scripts)
	}
	return site.installPlain(ctx, &l, places)
}

// installPlain returns the parts of places with the files of their archives. It fetches the
// packages that the store lacks.
func (s *site) installPlain(ctx context.Context, l *packageLock, places []string) ([]store.Part, error) {
	parts, missing := s.find(l, places)
	if len(missing) == 0 {
		return parts, nil
	}
	if err := image.Offline(ctx, "packages.npm: "+strings.Join(missing, ", ")); err != nil {
		return nil, err
	}
	for _, place := range places {
		if p := l.Packages[place]; !p.here() {
			return nil, &template.FieldError{Field: "packages.npm", Message: fmt.Sprintf(
				"%s %s does not support the machine (linux, %s, glibc), only the os, cpu or libc %s: remove the package, or move it to optionalDependencies",
				p.name(place), p.Version, architecture(), strings.Join(slices.Concat(p.OS, p.CPU, p.Libc), ", "))}
		}
	}
	return s.install(ctx, l, places)
}

var placePattern = regexp.MustCompile(`^(node_modules/(@[A-Za-z0-9~._-]+/)?[A-Za-z0-9~_-][A-Za-z0-9~._-]*)(/node_modules/(@[A-Za-z0-9~._-]+/)?[A-Za-z0-9~_-][A-Za-z0-9~._-]*)*$`)

// check refuses entries that no lock of registry packages holds. The lock may come from any source,
// so places are not used as paths before.
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
	for _, place := range slices.Sorted(maps.Keys(l.Packages)) {
		p := l.Packages[place]
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

// site is a registry seen from one build.
type site struct {
	step             *image.Step
	tools, compilers []string // Debian packages
	patience         time.Duration
	allowed          []string // names of packages whose scripts run
}

// find returns the parts that the store has, and the names of missing packages.
func (s *site) find(l *packageLock, places []string) (parts []store.Part, missing []string) {
	for _, place := range places {
		p := l.Packages[place]
		part, ok := s.step.Store.Part(p.key(place))
		if !ok {
			missing = append(missing, p.name(place)+" "+p.Version)
		}
		part.Prefix, part.Hash = place, p.hash() // the same version may be in several places
		parts = append(parts, part)
	}
	return parts, missing
}

// npm runs one npm command at the bench. Its shared cache holds lists of versions, never archives.
func (s *site) npm(ctx context.Context, b *install.Bench, args ...string) error {
	rootfs, err := s.step.Tools(ctx, "node", s.tools...)
	if err != nil {
		return err
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: rootfs, Network: true, Cache: "npm",
		Env: []string{
			"npm_config_cache=/run/npm", "npm_config_update_notifier=false", "NO_COLOR=1",
			// npm's own pauses begin with ten seconds.
			"npm_config_fetch_retries=3", "npm_config_fetch_retry_mintimeout=500", "npm_config_fetch_retry_maxtimeout=10000",
		},
		Args: append(append([]string{"/usr/bin/node", "/usr/bin/npm"}, args...),
			"--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"),
	})
	if err != nil {
		return failed(err, words)
	}
	return nil
}

// noAnswer matches npm's messages about a faulty request, not a faulty network.
var noAnswer = regexp.MustCompile(`\b(E404|ETARGET|ERESOLVE|EINVALIDTAGNAME|EINVALIDPACKAGENAME|EBADENGINE|EBADPLATFORM|ENOVERSIONS)\b`)

// failed makes the user's error from npm's output.
func failed(err error, words string) error {
	lines := install.Lines(words, func(l string) bool {
		return l == "404" || strings.Contains(l, "A complete log of this run") || strings.Contains(l, "/_logs/") ||
			strings.HasSuffix(l, "Note that you can also install from a") || strings.HasSuffix(l, "tarball, folder, http url, or git url.")
	}, "npm ERR!", "npm error")
	return install.PackageFailed(err, "npm", strings.Join(lines, "\n"), noAnswer)
}

// bench prepares a directory for npm: package.json, and the host's npmrc as the user's own. The
// copy, which may hold credentials, goes with the scratch directory at the end of the build.
func (s *site) bench(m manifest) (*install.Bench, error) {
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		Private bool   `json:"private"`
		manifest
	}{"function", "0.0.0", true, m})
	if err != nil {
		return nil, err
	}
	if err := b.Write("package.json", data); err != nil {
		return nil, err
	}
	rc, err := npmrc(s.step.Settings)
	if err != nil {
		return nil, err
	}
	return b, b.Write(".npmrc", rc)
}

// resolve asks npm for a lock of all required packages. The lock leaves out the addresses of
// archives, which are the host's configuration.
func (s *site) resolve(ctx context.Context, m manifest) (json.RawMessage, error) {
	m.Dev = nil
	b, err := s.bench(m)
	if err != nil {
		return nil, err
	}
	if err := s.npm(ctx, b, "install", "--package-lock-only", "--lockfile-version=3"); err != nil {
		return nil, err
	}
	raw, err := b.Read("package-lock.json")
	if err != nil {
		return nil, fmt.Errorf("npm install: %w", err)
	}
	return withoutHosts(raw)
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

// withLibc adds the C library of optional packages for this kind of machine to a lock. npm before
// version 10.4 leaves it out and would install a package's variants for both glibc and musl.
// Without an answer from the registry an entry stays unchanged.
func (s *site) withLibc(ctx context.Context, raw json.RawMessage) (json.RawMessage, error) {
	var l packageLock
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, fmt.Errorf("package-lock.json: %w", err)
	}
	asked := l.lacksLibc()
	if len(asked) == 0 || image.OptionsOf(ctx).Offline {
		return raw, nil
	}
	from, err := newRegistries(s.step.Settings)
	if err != nil {
		return nil, err
	}
	defer from.close()
	return from.withLibc(ctx, raw, &l, asked)
}

// lacksLibc returns the places of optional packages for this kind of machine whose C library the
// lock leaves out.
func (l *packageLock) lacksLibc() []string {
	return slices.DeleteFunc(l.places(), func(place string) bool {
		p := l.Packages[place]
		return !p.optional() || len(p.Libc) > 0 || !slices.Contains(p.OS, "linux") || !placePattern.MatchString(place)
	})
}

// installers is the number of packages that are fetched and unpacked at once.
const installers = 8

// install fetches and unpacks the packages that the store lacks, each version once, and returns the
// parts of all places.
func (s *site) install(ctx context.Context, l *packageLock, places []string) ([]store.Part, error) {
	from, err := newRegistries(s.step.Settings)
	if err != nil {
		return nil, err
	}
	defer from.close()
	s.step.Report(image.Progress{Step: "packages", Message: "install"})
	var (
		mu      sync.Mutex
		made    = map[string]store.Part{}
		counter = install.NewCounter()
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(installers)
	asked := map[string]bool{}
	for _, place := range places {
		key := l.Packages[place].key(place)
		if asked[key] {
			continue
		}
		asked[key] = true
		group.Go(func() error {
			part, ok := s.step.Store.Part(key)
			if !ok {
				var err error
				if part, err = s.put(ctx, from, counter, place, l.Packages[place]); err != nil {
					return err
				}
			}
			mu.Lock()
			defer mu.Unlock()
			made[key] = part
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	parts := make([]store.Part, len(places))
	for i, place := range places {
		p := l.Packages[place]
		parts[i] = made[p.key(place)]
		parts[i].Prefix, parts[i].Hash = place, p.hash()
	}
	return parts, nil
}

// put fetches and unpacks one package version and stores it as a part.
func (s *site) put(ctx context.Context, from *registries, counter *install.Counter, place string, p lockedPackage) (store.Part, error) {
	shown := p.name(place) + " " + p.Version
	fail := func(err error) error { return fmt.Errorf("packages.npm: %s: %w", shown, err) }
	f, err := os.CreateTemp(s.step.Scratch, "npm-")
	if err != nil {
		return store.Part{}, fail(err)
	}
	defer func() { _, _ = f.Close(), os.Remove(f.Name()) }()
	if err := from.archive(ctx, p.name(place), p.Version, p.Integrity, f); err != nil {
		return store.Part{}, fetched(err, shown)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return store.Part{}, fail(err)
	}
	w, err := s.step.Store.Create()
	if err != nil {
		return store.Part{}, fail(err)
	}
	defer w.Abort()
	if _, err := unpack(f, p.programs(), counter.Package(shown), w); err != nil {
		return store.Part{}, install.Unpacked(err, "npm", shown)
	}
	part := p.part(place)
	if part.Tree, err = w.Commit(ctx); err != nil {
		return store.Part{}, fail(err)
	}
	if err := s.step.Store.PutPart(ctx, p.key(place), part); err != nil {
		return store.Part{}, fail(err)
	}
	s.step.Report(image.Progress{Step: "packages", Name: shown, End: true})
	return part, nil
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
