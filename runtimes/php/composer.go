package php

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/bom"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Site is the source of packages.composer: the repositories of the host's own configuration and of
// composer.json, by way of Debian's Composer. It implements image.Site.
type Site struct {
	Tools []string // Debian packages to add to the base "php" for Composer
}

// Name is "composer".
func (Site) Name() string { return "composer" }

// Bases is FRE's base with PHP.
func (Site) Bases() []string { return []string{"php"} }

// Env is empty: the function requires vendor/autoload.php itself.
func (Site) Env() []string { return nil }

// ProgramDirs is Composer's directory for programs.
func (Site) ProgramDirs() []string { return []string{"/" + vendor + "/bin"} }

// vendor is the directory of packages in an image: Composer's own default.
const vendor = "function/vendor"

// autoloader is the part that finds the classes of all packages.
const autoloader = "composer autoloader"

// Packages makes one part for each package version below /function/vendor, and one for Composer's
// autoloader. Neither scripts nor plugins run. The lock pins the unpacked trees: repositories make
// archives anew at every request, and these have no stable hash.
func (r Site) Packages(ctx context.Context, step *image.Step, t *template.Template, lock *image.Lock) ([]store.Part, error) {
	s := &site{step: step, tools: r.Tools, requests: t.Packages.Of("composer")}
	root, err := s.root()
	if err != nil {
		return nil, err
	}
	section, pinned := lock.Sites[r.Name()].(*Locked)
	if pinned {
		if parts, ok := s.find(section.Packages, root); ok {
			return parts, nil
		}
		pin(root, section.Packages)
	}
	b, err := s.run(ctx, root, pinned)
	if err != nil {
		return nil, err
	}
	found, parts, err := s.imported(ctx, b)
	if err != nil {
		return nil, err
	}
	if !pinned {
		lock.Sites[r.Name()] = &Locked{image.LockedPackages{Request: s.requests.Key(), Packages: found}}
	} else if err := compare(section.Packages, found); err != nil {
		return nil, err
	}
	names := map[string]bool{"composer/installed.json": true} // names the archives' addresses
	for i, p := range found {
		names[p.Name] = true
		if err := step.Store.PutPart(ctx, key(p), parts[i]); err != nil {
			return nil, err
		}
	}
	auto, err := b.Put(ctx, autoloaderKey(found, root), store.Part{Kind: "package", Name: autoloader, Prefix: vendor},
		"vendor", func(p string) bool { return names[p] })
	if err != nil {
		return nil, err
	}
	return append(parts, auto), nil
}

// imported returns the packages that Composer has installed at the bench, with the hashes of their
// trees, and their parts.
func (s *site) imported(ctx context.Context, b *install.Bench) ([]image.LockedPackage, []store.Part, error) {
	found, archives, err := s.locked(b)
	if err != nil {
		return nil, nil, err
	}
	parts := make([]store.Part, len(found))
	for i := range found {
		p := &found[i]
		tree, err := b.Import(ctx, "vendor/"+p.Name, func(string) bool { return false })
		if err != nil {
			return nil, nil, install.Unpacked(fmt.Errorf("import: %w", err), "composer", p.Name+" "+p.Version)
		}
		parts[i] = store.Part{Kind: "package", Name: p.Name, Version: p.Version, Prefix: path.Join(vendor, p.Name), Tree: tree, Hash: archives[p.Name]}
		p.Hashes = []string{string(tree)}
	}
	return found, parts, nil
}

// site is one request to Composer.
type site struct {
	step     *image.Step
	tools    []string
	requests *template.Requests
}

// platform returns Composer's setting of that name for extensions that Composer's own
// environment adds (php-intl of the Debian packages) and the base lacks: a slim base has no
// intl. Composer then refuses a package that requires the extension.
func (s *site) platform() (map[string]any, error) {
	out := map[string]any{}
	for _, tool := range s.tools {
		name, ok := strings.CutPrefix(tool, "php-")
		if !ok {
			continue
		}
		found, err := filepath.Glob(filepath.Join(s.step.Rootfs, "usr/lib/php/2*", name+".so"))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			out["ext-"+name] = false
		}
	}
	return out, nil
}

// root returns the composer.json for Composer: the package members of the template's file, or the
// template's list.
func (s *site) root() (map[string]any, error) {
	root := map[string]any{}
	if s.requests.File != "" {
		var all map[string]any
		if err := json.Unmarshal(s.requests.Text, &all); err != nil {
			return nil, &template.FieldError{Field: "packages.composer", Message: fmt.Sprintf("packages.composer %q: %s", s.requests.File, err)}
		}
		for _, member := range []string{"require", "conflict", "replace", "provide", "repositories", "autoload", "minimum-stability", "prefer-stable"} {
			if v, ok := all[member]; ok {
				root[member] = v
			}
		}
		beside(root["repositories"], path.Join("/function", path.Dir(s.requests.File)))
	} else {
		require := map[string]any{}
		for _, request := range s.requests.List {
			name, wanted, ok := strings.Cut(request, ":")
			if !ok {
				wanted = "*"
			}
			require[name] = wanted
		}
		root["require"] = require
	}
	root["name"] = "fre/function"
	root["version"] = "1.0.0"
	platform, err := s.platform()
	if err != nil {
		return nil, err
	}
	root["config"] = map[string]any{"allow-plugins": false, "platform": platform, "optimize-autoloader": true}
	return root, nil
}

// beside makes the paths of repositories in directories absolute, because Composer sees the
// template's directory elsewhere.
func beside(repositories any, dir string) {
	var all []any
	switch r := repositories.(type) {
	case []any:
		all = r
	case map[string]any:
		for _, v := range r {
			all = append(all, v)
		}
	}
	for _, v := range all {
		r, ok := v.(map[string]any)
		if !ok || r["type"] != "path" && r["type"] != "artifact" {
			continue
		}
		if url, ok := r["url"].(string); ok && !path.IsAbs(url) {
			r["url"] = path.Join(dir, url)
		}
	}
}

// pin makes root request exactly the locked packages.
func pin(root map[string]any, packages []image.LockedPackage) {
	require := map[string]any{}
	if asked, ok := root["require"].(map[string]any); ok {
		for name, wanted := range asked {
			if !strings.Contains(name, "/") { // php, ext-…: the base's
				require[name] = wanted
			}
		}
	}
	for _, p := range packages {
		require[p.Name] = p.Version
	}
	root["require"] = require
	root["minimum-stability"], root["prefer-stable"] = "dev", true
}

// compare checks that the installed packages equal the locked packages.
func compare(locked, found []image.LockedPackage) error {
	for _, p := range found {
		i := slices.IndexFunc(locked, func(l image.LockedPackage) bool { return l.Name == p.Name })
		switch {
		case i < 0:
			return &template.FieldError{Field: "packages.composer", Message: fmt.Sprintf("%s %s is not in %s: delete the file to resolve again", p.Name, p.Version, image.LockFile)}
		case locked[i].Version != p.Version || !slices.Contains(locked[i].Hashes, p.Hashes[0]):
			return &image.PackageError{
				Site: "composer", Package: p.Name + " " + p.Version, Cause: image.PackageChanged,
				Message: "differs from " + image.LockFile + ": the files were changed since",
			}
		}
	}
	if len(found) < len(locked) {
		return &template.FieldError{Field: "packages.composer", Message: image.LockFile + " has unneeded packages: delete the file to resolve again"}
	}
	return nil
}

// key names the part of a package version in the store.
func key(p image.LockedPackage) string {
	return "composer:" + p.Name + "==" + p.Version + ":" + p.Hashes[0]
}

func autoloaderKey(packages []image.LockedPackage, root map[string]any) string {
	text, err := json.Marshal([]any{packages, root["autoload"]})
	if err != nil {
		panic(err) // the value came out of JSON
	}
	sum := sha256.Sum256(text)
	return "composer autoloader:" + hex.EncodeToString(sum[:])
}

// find returns the parts of the locked packages, if the store has all.
func (s *site) find(packages []image.LockedPackage, root map[string]any) ([]store.Part, bool) {
	var parts []store.Part
	for _, p := range packages {
		part, ok := s.step.Store.Part(key(p))
		if !ok {
			return nil, false
		}
		parts = append(parts, part)
	}
	part, ok := s.step.Store.Part(autoloaderKey(packages, root))
	return append(parts, part), ok
}

// run has Composer resolve and install at a bench, and leaves vendor and composer.lock there.
// Composer sees the template's directory at /function.
func (s *site) run(ctx context.Context, root map[string]any, pinned bool) (*install.Bench, error) {
	rootfs, err := s.step.Tools(ctx, "php", s.tools...)
	if err != nil {
		return nil, err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	v, err := s.configure(b, rootfs, root)
	if err != nil {
		return nil, err
	}
	verb := "update"
	if !pinned {
		switch found, err := s.projectLock(b); {
		case err != nil:
			return nil, err
		case found:
			verb = "install"
		}
	}
	s.step.Report(image.Progress{Step: "packages", Name: "composer", Message: verb})
	program := ""
	if s.step.Dir != nil {
		program = s.step.Dir.Name()
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: rootfs, Network: true, Program: program,
		Env: append([]string{
			"PHP_INI_SCAN_DIR=/work/.php", "COMPOSER_HOME=/work/.composer", "COMPOSER_CACHE_DIR=" + install.Private, "COMPOSER_MIRROR_PATH_REPOS=1", "COMPOSER_MAX_PARALLEL_HTTP=8",
		}, image.SettingsOf[Settings](s.step.Settings).Env...),
		Args: []string{
			"/usr/bin/php" + v, "-d", "memory_limit=-1", "/usr/bin/composer",
			verb, "--no-dev", "--no-scripts", "--no-plugins", "--no-interaction", "--no-progress", "--no-ansi", "--prefer-dist",
		},
	})
	if err != nil {
		return nil, failed(err, words)
	}
	return b, nil
}

// configure writes composer.json and the configurations of PHP and Composer to the bench, and
// returns the version of PHP in the tool image.
func (s *site) configure(b *install.Bench, rootfs string, root map[string]any) (version string, err error) {
	// The tool image lacks the settings that FinishBase makes.
	tools, err := os.OpenRoot(rootfs)
	if err != nil {
		return "", err
	}
	defer func() { _ = tools.Close() }()
	version, extensions, err := settings(tools.FS())
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(root)
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(filepath.Join(b.Dir, ".php"), 0o755); err != nil {
		return "", err
	}
	return version, errors.Join(b.Write("composer.json", text), b.Write(".php/extensions.ini", extensions), s.home(b))
}

// projectLock copies the composer.lock beside the template's composer.json to the bench, if there
// is one.
func (s *site) projectLock(b *install.Bench) (found bool, err error) {
	if s.requests.File == "" || s.step.Dir == nil {
		return false, nil
	}
	text, err := s.step.Dir.ReadFile(path.Join(path.Dir(s.requests.File), "composer.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, b.Write("composer.lock", text)
}

// home writes Composer's own configuration: the host's repositories and credentials. It goes with
// the bench at the end of the build.
func (s *site) home(b *install.Bench) error {
	home := filepath.Join(b.Dir, ".composer")
	if err := os.Mkdir(home, 0o755); err != nil {
		return err
	}
	host := map[string]any{}
	if text, err := s.hostFile("config.json"); err != nil {
		return err
	} else if text != nil {
		if err := json.Unmarshal(text, &host); err != nil {
			return fmt.Errorf("composer's configuration: %s: %w", "config.json", err)
		}
	}
	if text, err := s.hostFile("auth.json"); err != nil {
		return err
	} else if text != nil {
		if err := b.Write(".composer/auth.json", text); err != nil {
			return err
		}
	}
	text, err := json.Marshal(homeConfig(host))
	if err != nil {
		return err
	}
	return b.Write(".composer/config.json", text)
}

// hostFile reads a file of the host's own Composer configuration; nil for none.
func (s *site) hostFile(name string) ([]byte, error) {
	dir := image.SettingsOf[Settings](s.step.Settings).Home
	if dir == "" {
		return nil, nil
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("composer's configuration: %w", err)
	}
	return text, nil
}

// homeConfig returns the repositories and settings of the host's config.json, without settings that
// name files of the host, or run programs.
func homeConfig(host map[string]any) map[string]any {
	config, out := map[string]any{}, map[string]any{}
	if r, ok := host["repositories"]; ok {
		out["repositories"] = r
	}
	if c, ok := host["config"].(map[string]any); ok {
		config = c
	}
	for name := range config {
		if strings.HasSuffix(name, "-dir") || slices.Contains([]string{"home", "cafile", "capath", "platform", "allow-plugins", "use-parent-dir", "store-auths"}, name) {
			delete(config, name)
		}
	}
	out["config"] = config
	return out
}

// locked reads the packages that Composer has chosen, and the archives' hashes that it has
// verified, as parseLock does.
func (s *site) locked(b *install.Bench) (packages []image.LockedPackage, archives map[string]string, err error) {
	text, err := b.Read("composer.lock")
	if err != nil {
		return nil, nil, fmt.Errorf("composer: %w", err)
	}
	if packages, archives, err = parseLock(text); err != nil {
		return nil, nil, err
	}
	root, err := b.Open(".")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = root.Close() }()
	return slices.DeleteFunc(packages, func(p image.LockedPackage) bool { // a metapackage has no files
		_, err := root.Lstat("vendor/" + p.Name)
		return errors.Is(err, fs.ErrNotExist)
	}), archives, nil
}

// place is the source of a package's files.
type place struct {
	URL string `json:"url"`
}

// outside reports whether the URL is neither a server's address nor beside the template. A
// repository may name any file that Composer can read, credentials too.
func (p place) outside() bool {
	return !web.MatchString(p.URL) && !strings.HasPrefix(path.Clean(p.URL), "/function/")
}

// web matches a server's address, and a mirror's with placeholders.
var web = regexp.MustCompile(`^https?://[^/]`)

// shasum is an archive's hash in a repository; most have none.
var shasum = regexp.MustCompile(`^[0-9a-f]{40}$`)

// parseLock reads the packages of a composer.lock, sorted by name, without hashes. archives maps
// names to the archive hashes ("sha1:…") that repositories give and Composer verifies. It refuses
// packages whose files come from outside of servers and the template.
func parseLock(text []byte) (packages []image.LockedPackage, archives map[string]string, err error) {
	var l struct {
		Packages []struct {
			Name    string `json:"name"`
			Version string `json:"version"`
			Dist    *struct {
				place

				Mirrors []place `json:"mirrors"`
				Type    string  `json:"type"`
				Shasum  string  `json:"shasum"`
			} `json:"dist"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(bom.Decode(text), &l); err != nil {
		return nil, nil, fmt.Errorf("composer.lock: %w", err)
	}
	packages, archives = make([]image.LockedPackage, 0, len(l.Packages)), map[string]string{}
	for _, p := range l.Packages {
		// Composer's own files are in the autoloader's part, not a package.
		if !namePattern.MatchString(p.Name) || p.Name == "composer/installed.json" || p.Version == "" || len(p.Version) > 128 || strings.ContainsAny(p.Version, "\x00\n ") {
			return nil, nil, fmt.Errorf("composer.lock: bad package %q version %q", p.Name, p.Version)
		}
		if p.Dist != nil {
			for _, at := range append(p.Dist.Mirrors, p.Dist.place) {
				if at.outside() {
					return nil, nil, &template.FieldError{Field: "packages.composer", Message: fmt.Sprintf(
						"the repository names %[3]q as the source of %[1]s %[2]s, neither a server's address nor below the template's directory: do not trust the repository", p.Name, p.Version, at.URL)}
				}
			}
			if p.Dist.Type != "path" && shasum.MatchString(p.Dist.Shasum) {
				archives[p.Name] = "sha1:" + p.Dist.Shasum
			}
		}
		packages = append(packages, image.LockedPackage{Name: p.Name, Version: p.Version})
	}
	slices.SortFunc(packages, func(a, b image.LockedPackage) int { return strings.Compare(a.Name, b.Name) })
	return packages, archives, nil
}

// noAnswer matches Composer's messages about a faulty request, not a faulty network.
var noAnswer = regexp.MustCompile(`could not be resolved|could not be found|Could not parse version|does not match the expected JSON schema|is invalid`)

// failed makes the user's error from Composer's output.
func failed(err error, words string) error {
	lines := install.Lines(words, func(l string) bool {
		return strings.HasPrefix(l, "Loading composer") || strings.HasPrefix(l, "Updating dependencies") || strings.HasPrefix(l, "Installing dependencies") ||
			strings.HasPrefix(l, "In ") || strings.HasPrefix(l, "update [") || strings.HasPrefix(l, "install [")
	})
	return install.PackageFailed(err, "composer", strings.Join(lines, "\n"), noAnswer)
}
