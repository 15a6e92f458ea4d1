package ruby

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

//go:embed gem.rb
var gemProgram []byte

// Site is the source of packages.gem: the gem sources of the host's own configuration, by way of
// RubyGems. It implements image.Site.
type Site struct {
	Compilers []string // Debian packages to add to the base "ruby" for gems with native code
}

// prefix is the directory of gems in an image: a GEM_HOME.
const prefix = "opt/ruby"

const (
	gemfile     = "Gemfile"
	gemfileLock = "Gemfile.lock"
)

// Name is "gem".
func (Site) Name() string { return "gem" }

// Bases is FRE's base with Ruby.
func (Site) Bases() []string { return []string{"ruby"} }

// Env tells RubyGems the directory of gems, in addition to the distribution's.
func (Site) Env() []string { return []string{"GEM_PATH=/" + prefix + ":"} }

// ProgramDirs is the directory of the gems' programs.
func (Site) ProgramDirs() []string { return []string{"/" + prefix + "/bin"} }

// ReadRequests reads the Gemfile.lock beside a Gemfile. It implements image.RequestReader.
func (Site) ReadRequests(r *template.Requests, read func(string) ([]byte, error)) error {
	if path.Base(r.File) != gemfile {
		return fmt.Errorf("%s is not named %s", r.File, gemfile)
	}
	_, err := read(path.Join(path.Dir(r.File), gemfileLock))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Section returns an empty section: gems, each after the gems it needs. The version of a platform's
// gem ends in the platform, as in 1.18.0-x86_64-linux-gnu. The hash is the archive's.
func (Site) Section() image.Section { return &image.LockedPackages{} }

// gems is a request to RubyGems.
type gems struct {
	step      *image.Step
	compilers []string
	abi       string // of the base's Ruby and machine, for the parts' keys
}

// Packages makes one part for each gem at opt/ruby. It fetches no gem if the lock answers the
// request and the store has its parts. A gem's own code runs only to build its native part, without
// network and credentials.
func (r Site) Packages(ctx context.Context, step *image.Step, t *template.Template, lock *image.Lock) ([]store.Part, error) {
	g := &gems{step: step, compilers: r.Compilers}
	if err := g.findABI(); err != nil {
		return nil, err
	}
	section, pinned := lock.Sites[r.Name()].(*image.LockedPackages)
	if pinned {
		if parts, missing := g.parts(section.Packages); len(missing) == 0 {
			return parts, nil
		} else if err := image.Offline(ctx, "packages.gem: "+strings.Join(missing, ", ")); err != nil {
			return nil, err
		}
	} else if err := image.Offline(ctx, "an answer to packages.gem"); err != nil {
		return nil, err
	}
	job := map[string]any{"sources": append([]string{}, image.SettingsOf[Settings](step.Settings).Sources...), "sums": map[string]string{}}
	if pinned {
		job["pinned"] = section.Packages
	} else {
		step.Report(image.Progress{Step: "packages", Message: "resolve"})
		q, err := g.request(ctx, t.Packages.Of("gem"))
		if err != nil {
			return nil, err
		}
		job["gems"], job["sums"] = q.Gems, q.Sums
	}
	b, found, err := g.fetch(ctx, job)
	if err != nil {
		return nil, err
	}
	packages := make([]image.LockedPackage, len(found))
	for i, f := range found {
		packages[i] = image.LockedPackage{Name: f.Name, Version: f.Version, Hashes: []string{f.Hash}}
	}
	if !pinned {
		lock.Sites[r.Name()] = &image.LockedPackages{Request: t.Packages.Of("gem").Key(), Packages: packages}
	}
	return g.install(ctx, b, found, packages)
}

var abiPattern = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)

// findABI reads the version of Ruby's C interface from the base's directories, such as
// usr/lib/ruby/3.1.0.
func (g *gems) findABI() error {
	names, err := filepath.Glob(filepath.Join(g.step.Rootfs, "usr/lib/ruby/[0-9]*"))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(names, func(name string) bool { return abiPattern.MatchString(filepath.Base(name)) })
	if i < 0 {
		return fmt.Errorf("the base environment has no usr/lib/ruby/VERSION: %w", fs.ErrNotExist)
	}
	g.abi = filepath.Base(names[i]) + "-" + runtime.GOARCH
	return nil
}

// key names the part of a gem in the store.
func (g *gems) key(p image.LockedPackage) string {
	return fmt.Sprintf("gem:%s==%s:%s:%s", p.Name, p.Version, g.abi, p.Hashes[0])
}

// parts returns the packages' parts in the store, and the names of missing packages.
func (g *gems) parts(packages []image.LockedPackage) (parts []store.Part, missing []string) {
	parts = make([]store.Part, len(packages))
	for i, p := range packages {
		part, ok := g.step.Store.Part(g.key(p))
		if !ok {
			missing = append(missing, p.Name+" "+p.Version)
		}
		part.Hash = p.Hashes[0]
		parts[i] = part
	}
	return parts, missing
}

// wanted is a gem with the acceptable versions: {"sinatra", {"~> 4.0"}}.
type wanted struct {
	Name        string   `json:"name"`
	Requirement []string `json:"requirement"`
}

// request is the output of gem.rb's request.
type request struct {
	Gems []wanted          `json:"gems"`
	Sums map[string]string `json:"sums"` // full name → sha256, hexadecimal
}

// request gathers the template's requests.
func (g *gems) request(ctx context.Context, r *template.Requests) (*request, error) {
	q := request{Gems: []wanted{}, Sums: map[string]string{}}
	if r.File == "" {
		for _, text := range r.List {
			q.Gems = append(q.Gems, parseGem(text))
		}
		return &q, nil
	}
	b, err := install.NewBench(g.step)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.Mkdir("request"), b.Write("request/"+gemfile, r.Text)); err != nil {
		return nil, err
	}
	for name, text := range r.Beside {
		if err := b.Write("request/"+path.Base(name), text); err != nil {
			return nil, err
		}
	}
	words, err := g.run(ctx, b, g.step.Rootfs, "request", map[string]any{}, false)
	if err != nil {
		return nil, install.Failed(err, "packages.gem", words)
	}
	text, err := b.Read("request.json")
	if err == nil {
		err = json.Unmarshal(text, &q)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", r.File, err)
	}
	return &q, nil
}

// parseGem splits a request such as "rack:>= 2, < 4", in gem install's format.
func parseGem(text string) wanted {
	name, versions, ok := strings.Cut(text, ":")
	w := wanted{Name: name, Requirement: []string{}}
	if ok {
		for v := range strings.SplitSeq(versions, ",") {
			w.Requirement = append(w.Requirement, strings.TrimSpace(v))
		}
	}
	return w
}

// found is a downloaded gem.
type found struct {
	Name    string `json:"name"`
	Version string `json:"version"` // with the platform: "1.18.0-x86_64-linux-gnu"
	Hash    string `json:"hash"`    // "sha256:…"
	Native  bool   `json:"native"`  // the gem has code to compile
}

func (f *found) file() string { return f.Name + "-" + f.Version + ".gem" }

var (
	// noAnswer matches RubyGems' messages about a faulty request, not a faulty site.
	noAnswer = regexp.MustCompile(`Unable to resolve|conflicting dependencies|could not be resolved|gems depend on each other|Illformed requirement|Malformed version`)
	gone     = regexp.MustCompile(`^(\S+) is gone: `)
	bad      = regexp.MustCompile(`^(\S+) is not a valid archive: `)
	unbuilt  = regexp.MustCompile(`^(\S+)\.gem: native part cannot be built:`)
)

// fetch resolves the job's requests, unless they are pinned, and downloads the gems to gems/ of a
// new bench. Each gem follows its dependencies in the result.
func (g *gems) fetch(ctx context.Context, job map[string]any) (*install.Bench, []found, error) {
	b, err := install.NewBench(g.step)
	if err != nil {
		return nil, nil, err
	}
	if err := b.Mkdir("gems"); err != nil {
		return nil, nil, err
	}
	words, err := g.run(ctx, b, g.step.Rootfs, "fetch", job, true)
	if m := gone.FindStringSubmatch(words); err != nil && m != nil {
		return nil, nil, &image.PackageError{Site: "gem", Package: m[1], Cause: image.PackageGone, Message: words, Err: err}
	}
	if err != nil {
		return nil, nil, failed(err, words)
	}
	text, err := b.Read("found.json")
	if err != nil {
		return nil, nil, err
	}
	var list []found
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, nil, fmt.Errorf("RubyGems' result: %w", err)
	}
	return b, list, nil
}

// failed makes the user's error from RubyGems' output.
func failed(err error, words string) error {
	words = strings.Join(install.Lines(words, func(l string) bool { return strings.HasPrefix(l, "from ") }, "ERROR: "), "\n")
	var exit *image.ExitError
	for pattern, cause := range map[*regexp.Regexp]image.PackageCause{bad: image.PackageBad, unbuilt: image.PackageUnbuilt} {
		if m := pattern.FindStringSubmatch(words); m != nil && errors.As(err, &exit) {
			return &image.PackageError{Site: "gem", Package: strings.TrimSuffix(m[1], ".gem"), Cause: cause, Message: words, Err: err}
		}
	}
	return install.PackageFailed(err, "gem", words, noAnswer)
}

// install makes the parts of gems that the store lacks.
func (g *gems) install(ctx context.Context, fetched *install.Bench, list []found, packages []image.LockedPackage) ([]store.Part, error) {
	parts, _ := g.parts(packages)
	var plain, native []int
	for i := range list {
		switch {
		case parts[i].Tree != "":
		case list[i].Native:
			native = append(native, i)
		default:
			plain = append(plain, i)
		}
	}
	g.step.Report(image.Progress{Step: "packages", Message: "install"})
	if len(plain) > 0 {
		if err := g.unpack(ctx, fetched, g.step.Rootfs, list, plain, packages, parts, nil); err != nil {
			return nil, err
		}
	}
	for _, i := range native {
		rootfs, err := g.step.Tools(ctx, "ruby", g.compilers...)
		if err != nil {
			return nil, err
		}
		g.step.Report(image.Progress{Step: "packages", Name: list[i].Name + " " + list[i].Version, Message: "build"})
		if err := g.unpack(ctx, fetched, rootfs, list, []int{i}, packages, parts, parts[:i]); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// unpack installs the gems with the indexes which at a new bench, with the gems beside available,
// and makes their parts.
func (g *gems) unpack(ctx context.Context, fetched *install.Bench, rootfs string, list []found, which []int, packages []image.LockedPackage, parts, beside []store.Part) error {
	b, err := install.NewBench(g.step)
	if err != nil {
		return err
	}
	if err := b.Mkdir("gems", "out"); err != nil {
		return err
	}
	for i, part := range beside {
		if err := b.Lay(ctx, part.Tree, fmt.Sprintf("beside/%d", i)); err != nil {
			return err
		}
	}
	var jobs []map[string]string
	for _, i := range which {
		// Copy the gem: code at this bench must not change the files of other installations.
		text, err := readGem(fetched, list[i].file())
		if err != nil {
			return err
		}
		out := fmt.Sprintf("out/%d", i)
		if err := errors.Join(b.Write("gems/"+list[i].file(), text), b.Mkdir(out)); err != nil {
			return err
		}
		jobs = append(jobs, map[string]string{"file": list[i].file(), "out": "/work/" + out})
	}
	var homes []string
	for i := range beside {
		homes = append(homes, fmt.Sprintf("/work/beside/%d", i))
	}
	words, err := g.run(ctx, b, rootfs, "install", map[string]any{"gems": jobs}, false, "GEM_PATH="+strings.Join(homes, ":")+":")
	if err != nil {
		return failed(err, words)
	}
	for _, i := range which {
		p := packages[i]
		part := store.Part{Kind: "gem", Name: p.Name, Version: p.Version, Prefix: prefix, Hash: p.Hashes[0]}
		if parts[i], err = b.Put(ctx, g.key(p), part, fmt.Sprintf("out/%d", i), leftOut); err != nil {
			return install.Unpacked(err, "gem", p.Name+" "+p.Version)
		}
		g.step.Report(image.Progress{Step: "packages", Name: p.Name + " " + p.Version, End: true})
	}
	return nil
}

// leftOut reports whether a file of a GEM_HOME is useless to programs: archives, documentation and
// remains of a build.
func leftOut(p string) bool {
	top, _, _ := strings.Cut(p, "/")
	switch path.Base(p) {
	case "mkmf.log", "gem_make.out":
		return true
	}
	return top == "cache" || top == "doc" || top == "build_info" || strings.HasSuffix(p, ".o")
}

// readGem reads a gem that fetch has left at the bench.
func readGem(b *install.Bench, name string) ([]byte, error) {
	root, err := b.Open("gems")
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxGem {
		return nil, &image.PackageError{Site: "gem", Package: name, Cause: image.PackageBad, Err: install.ErrTooLarge}
	}
	return root.ReadFile(name)
}

// maxGem is the largest accepted size of a gem.
const maxGem = 512 << 20

// run runs gem.rb in a sandbox.
func (g *gems) run(ctx context.Context, b *install.Bench, rootfs, verb string, job any, network bool, env ...string) (words string, err error) {
	text, err := json.Marshal(job)
	if err == nil {
		err = errors.Join(b.Write("gem.rb", gemProgram), b.Write("job.json", text))
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.Remove(filepath.Join(b.Dir, "job.json"))) }() // its sources may hold passwords
	return b.Run(ctx, install.Tool{
		Rootfs: rootfs, Network: network, Env: append([]string{"BUNDLE_IGNORE_CONFIG=1"}, env...),
		Args: []string{"/usr/bin/ruby", "/work/gem.rb", verb},
	})
}
