package node

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/bom"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// scripted is a package whose install scripts the template allows. Its part is the result of the
// scripts on its files:
//
//	/work/node_modules/bcrypt          a copy for the scripts to change; becomes the part
//	/work/node_modules/node-addon-api  a dependency, read-only
//	/work/node_modules/.bin            links to the dependencies' programs
type scripted struct {
	place string // as in the lock, and below /work
	sees  []seen // the dependencies, by place
	key   string // of its part
}

// seen is a dependency that a package's scripts see.
type seen struct {
	place string
	key   string // of its part
	made  bool   // its own scripts have run before
}

// installScripted is like installPlain, but makes the allowed packages by their scripts.
func (s *site) installScripted(ctx context.Context, l *packageLock, places, allowed []string) ([]store.Part, error) {
	if s.step.Platform != "" {
		return nil, &template.FieldError{Field: "packages.npm_scripts", Message: "packages.npm_scripts needs a base of FRE's, with Node and compilers of the same release"}
	}
	s.allowed = allowed
	scripts, err := l.scripted(places, allowed, s.step.Debian["nodejs"])
	if err != nil {
		return nil, err
	}
	parts := map[string]store.Part{} // by place
	missing := map[string]bool{}     // parts to make by scripts, by place
	for _, p := range scripts {
		part, ok := s.step.Store.Part(p.key)
		parts[p.place], missing[p.place] = part, !ok
	}
	scripts = slices.DeleteFunc(scripts, func(p scripted) bool { return !missing[p.place] })
	asFetched := seenAsFetched(scripts)
	plain := slices.DeleteFunc(slices.Clone(places), func(place string) bool {
		_, made := parts[place]
		return made && !missing[place] && !asFetched[place]
	})
	archives, err := s.installPlain(ctx, l, plain)
	if err != nil {
		return nil, err
	}
	fetched := map[string]store.Part{}
	for i, place := range plain {
		fetched[place] = archives[i]
		if _, made := parts[place]; !made {
			parts[place] = archives[i]
		}
	}
	for _, p := range scripts {
		if parts[p.place], err = s.build(ctx, l, places, p, fetched[p.place].Tree, p.beside(fetched, parts)); err != nil {
			return nil, err
		}
	}
	out := make([]store.Part, len(places))
	for i, place := range places {
		out[i] = parts[place]
		out[i].Prefix = place
	}
	return out, nil
}

// seenAsFetched returns the places of the packages that scripts see before their own scripts have
// run.
func seenAsFetched(scripts []scripted) map[string]bool {
	out := map[string]bool{}
	for _, p := range scripts {
		for _, d := range p.sees {
			if !d.made {
				out[d.place] = true
			}
		}
	}
	return out
}

// beside returns the trees that the scripts of p see, by place: a dependency as fetched, or as its
// own scripts have made it.
func (p scripted) beside(fetched, parts map[string]store.Part) map[string]store.Digest {
	out := map[string]store.Digest{}
	for _, d := range p.sees {
		if out[d.place] = fetched[d.place].Tree; d.made {
			out[d.place] = parts[d.place].Tree
		}
	}
	return out
}

// scripted lists the packages with allowed names among places, dependencies first. version is the
// version of their Node.
func (l *packageLock) scripted(places, allowed []string, version string) ([]scripted, error) {
	for _, name := range allowed {
		if !slices.ContainsFunc(places, func(place string) bool { return l.ByPlace[place].name(place) == name }) {
			return nil, &template.FieldError{Field: "packages.npm_scripts", Message: fmt.Sprintf(
				"npm_scripts names %q, not an installed package: write a package's name in node_modules", name)}
		}
	}
	o := scriptOrder{packageLock: l, places: places, allowed: allowed, version: version, there: setOf(places), keys: map[string]string{}, visited: map[string]bool{}}
	for _, place := range places {
		o.visit(place)
	}
	return o.out, nil
}

// scriptOrder lists the packages of a lock whose scripts run, dependencies first.
type scriptOrder struct {
	*packageLock
	places, allowed []string
	version         string            // of Node
	there           map[string]bool   // the places
	keys            map[string]string // of the parts that are made by scripts, by place
	visited         map[string]bool
	out             []scripted
}

func (o *scriptOrder) visit(place string) {
	if o.visited[place] {
		return
	}
	o.visited[place] = true
	for _, d := range o.needs(place, o.there) {
		o.visit(d)
	}
	if slices.Contains(o.allowed, o.ByPlace[place].name(place)) {
		made := o.scriptedAt(place)
		o.keys[place] = made.key
		o.out = append(o.out, made)
	}
}

// scriptedAt returns the package at place. Its key covers all that its scripts see.
func (o *scriptOrder) scriptedAt(place string) scripted {
	p := o.ByPlace[place]
	made := scripted{place: place}
	var below []string // places of other parts, which this part leaves out
	for _, d := range o.places {
		if strings.HasPrefix(d, place+"/") {
			below = append(below, d)
		}
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "2 %q %q %q %s %q %q\n", place, p.key(place), o.version, runtime.GOARCH, p.commands(place), below)
	for _, d := range o.closure(place, o.there) {
		s := seen{place: d, key: o.keys[d], made: true}
		if s.key == "" {
			s.key, s.made = o.ByPlace[d].key(d), false
		}
		_, _ = fmt.Fprintf(sum, "%q %q %q\n", s.place, s.key, o.ByPlace[d].commands(d))
		made.sees = append(made.sees, s)
	}
	made.key = fmt.Sprintf("npm-scripts:%s@%s:%x", p.name(place), p.Version, sum.Sum(nil)[:16])
	return made
}

// commands returns the package's programs by name; fmt prints a map sorted.
func (p lockedPackage) commands(place string) map[string]string {
	all, err := commands(p.name(place), p.Bin)
	if err != nil {
		return nil // without links too
	}
	return all
}

// needs lists, sorted, the existing places at which Node finds a package's dependencies
// (nodejs.org/api/modules.html, "Loading from node_modules folders").
func (l *packageLock) needs(place string, there map[string]bool) []string {
	p := l.ByPlace[place]
	var out []string
	for _, list := range []map[string]json.RawMessage{p.Dependencies, p.OptionalDependencies, p.PeerDependencies} {
		for name := range list {
			for at := place; ; at = parent(at) {
				d := strings.TrimPrefix(at+"/node_modules/"+name, "/")
				if _, ok := l.ByPlace[d]; !ok && at != "" {
					continue
				}
				for d != "" && l.ByPlace[d].InBundle {
					d = parent(d) // included in the bundling package
				}
				if there[d] && d != place {
					out = append(out, d)
				}
				break
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// closure lists, sorted, a package's direct and indirect dependencies.
func (l *packageLock) closure(place string, there map[string]bool) []string {
	found := map[string]bool{place: true}
	var out []string
	for queue := []string{place}; len(queue) > 0; queue = queue[1:] {
		for _, d := range l.needs(queue[0], there) {
			if !found[d] {
				found[d] = true
				out, queue = append(out, d), append(queue, d)
			}
		}
	}
	slices.Sort(out)
	return out
}

// hook is an install script of a package.
type hook struct{ name, command string }

const (
	maxManifest = 8 << 20
	maxCommand  = 64 << 10
)

// hooks returns the scripts of a package.json that npm runs at the installation, in npm's order
// (npm help scripts, "npm install"). gyp says that the package has a binding.gyp (npm help
// package-json, "scripts").
func hooks(manifest []byte, gyp bool) ([]hook, error) {
	var m struct {
		Scripts json.RawMessage `json:"scripts"`
		Gyp     json.RawMessage `json:"gypfile"`
	}
	if err := json.Unmarshal(bom.Decode(manifest), &m); err != nil {
		return nil, fmt.Errorf("package.json: %w", err)
	}
	var scripts map[string]json.RawMessage
	if json.Unmarshal(m.Scripts, &scripts) != nil {
		scripts = nil // npm ignores malformed scripts
	}
	builds := gyp && string(m.Gyp) != "false"
	var out []hook
	for _, name := range []string{"preinstall", "install", "postinstall"} {
		command := scriptText(scripts[name])
		if name == "install" && builds && command == "" && len(out) == 0 {
			command = "node-gyp rebuild"
		}
		if len(command) > maxCommand || strings.ContainsRune(command, 0) {
			return nil, fmt.Errorf("package.json: bad %s script", name)
		}
		if command != "" {
			out = append(out, hook{name, command})
		}
	}
	return out, nil
}

// scriptText returns the command of a script, or "" for a blank or malformed one.
func scriptText(raw json.RawMessage) string {
	var command string
	if json.Unmarshal(raw, &command) != nil || strings.TrimSpace(command) == "" {
		return ""
	}
	return command
}

// hooksOf returns the install scripts of a package as published, and whether node-gyp has files to
// build.
func (s *site) hooksOf(tree store.Digest) (list []hook, gyp bool, err error) {
	files, err := s.step.Store.Tree(tree)
	if err != nil {
		return nil, false, err
	}
	var manifest *store.Entry
	own := false // binding.gyp at the top, as npm requires
	for i := range files.Entries {
		switch e := &files.Entries[i]; {
		case e.Kind != store.KindFile:
		case e.Path == manifestFile:
			manifest = e
		case path.Base(e.Path) == "binding.gyp":
			own, gyp = own || e.Path == "binding.gyp", true
		}
	}
	if manifest == nil {
		return nil, false, errors.New("no package.json")
	}
	text, err := s.readManifest(manifest)
	if err != nil {
		return nil, false, err
	}
	list, err = hooks(text, own)
	return list, gyp, err
}

// readManifest reads a package.json, at most maxManifest bytes.
func (s *site) readManifest(e *store.Entry) ([]byte, error) {
	f, err := s.step.Store.OpenFile(e)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(text) > maxManifest {
		return nil, fmt.Errorf("package.json %w: %d MiB", install.ErrTooLarge, maxManifest>>20)
	}
	return text, nil
}

// build makes the part of a package by its install scripts, which see the trees beside by place.
// They run without network and credentials.
func (s *site) build(ctx context.Context, l *packageLock, places []string, p scripted, tree store.Digest, beside map[string]store.Digest) (store.Part, error) {
	locked := l.ByPlace[p.place]
	shown := locked.name(p.place) + " " + locked.Version
	part := locked.part(p.place)
	list, gyp, err := s.hooksOf(tree)
	if err != nil {
		return part, install.Unpacked(err, "npm", shown)
	}
	if len(list) == 0 {
		s.step.Report(image.Progress{Step: "warning", Name: locked.name(p.place), Message: "is named in packages.npm_scripts and has no install script"})
		part.Tree = tree
		return part, s.step.Store.PutPart(ctx, p.key, part)
	}
	s.step.Report(image.Progress{Step: "packages", Name: shown, Message: "run install scripts"})
	tools := s.tools
	if gyp {
		tools = slices.Concat(tools, s.compilers)
	}
	rootfs, err := s.step.Tools(ctx, "node", tools...)
	if err != nil {
		return part, err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return part, err
	}
	if err := s.lay(ctx, b, rootfs, l, p, tree, beside); err != nil {
		return part, notLaid(err, shown)
	}
	for _, h := range list {
		if err := s.run(ctx, b, rootfs, locked, p.place, h); err != nil {
			return part, err
		}
	}
	there := setOf(places)
	part, err = b.Put(ctx, p.key, part, p.place, func(name string) bool {
		return there[path.Join(p.place, name)] || name == binDir || gyp && leftover.MatchString(name)
	})
	if err != nil {
		return part, install.Unpacked(err, "npm", shown)
	}
	s.step.Report(image.Progress{Step: "packages", Name: shown, End: true})
	return part, b.Remove()
}

func setOf(places []string) map[string]bool {
	set := make(map[string]bool, len(places))
	for _, place := range places {
		set[place] = true
	}
	return set
}

// notLaid attributes an error of lay: a package with a file at the path of another package's
// directory is bad.
func notLaid(err error, shown string) error {
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrExist) {
		return &image.PackageError{Site: "npm", Package: shown, Cause: image.PackageBad, Err: err}
	}
	return install.Unpacked(err, "npm", shown)
}

// binDir is the directory in which npm links the programs of packages.
const binDir = "node_modules/.bin"

// leftover matches files that node-gyp needs only to build again.
var leftover = regexp.MustCompile(`^build/([^/]*Makefile|[^/]*\.mk|config\.gypi|node_gyp_bins|(Release|Debug)/(\.deps|obj(\.target)?))$`)

// original is the directory of a bench with the published files of the scripts' package.
const original = "package"

// own gives the step's user a copy of the package: only an owner can change modes and times of
// files.
const own = `require("fs").cpSync("/work/` + original + `", process.argv[1], {recursive: true, preserveTimestamps: true, verbatimSymlinks: true})`

// lay writes the files that a package's scripts see to a bench.
func (s *site) lay(ctx context.Context, b *install.Bench, rootfs string, l *packageLock, p scripted, tree store.Digest, beside map[string]store.Digest) error {
	at := []string{p.place}
	for _, d := range p.sees {
		at = append(at, d.place)
	}
	slices.Sort(at) // parents before the packages in their node_modules
	top, err := b.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	for _, place := range at {
		if place != p.place {
			if err := b.Lay(ctx, beside[place], place); err != nil {
				return err
			}
			continue
		}
		// Remove files that another package has at this place.
		if err := errors.Join(b.Lay(ctx, tree, original), top.RemoveAll(place), b.Mkdir(place)); err != nil {
			return err
		}
		if words, err := b.Run(ctx, install.Tool{Rootfs: rootfs, Args: []string{"/usr/bin/node", "-e", own, "/work/" + place}}); err != nil {
			return install.Failed(err, "", words)
		}
	}
	for _, place := range at {
		if err := linkCommands(top, place, l.ByPlace[place].Bin); err != nil {
			return err
		}
	}
	return nil
}

// linkCommands links the programs of the package at place, as npm does.
func linkCommands(top *os.Root, place string, list json.RawMessage) error {
	if len(list) == 0 {
		return nil
	}
	name := lockedPackage{}.name(place)
	programs, err := commands(name, list)
	if err != nil {
		return fmt.Errorf("bin: %w", err)
	}
	bin := path.Join(parent(place), binDir)
	if err := top.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for program, file := range programs {
		if err := top.Symlink(path.Join("..", name, file), path.Join(bin, program)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// scriptLines is the number of a script's last lines in an error.
const scriptLines = 30

// run runs one script of a package as npm would (npm help scripts, "Environment").
func (s *site) run(ctx context.Context, b *install.Bench, rootfs string, p lockedPackage, place string, h hook) error {
	var search []string
	for at := place; ; at = parent(at) {
		search = append(search, path.Join("/work", at, binDir))
		if at == "" {
			break
		}
	}
	name := p.name(place)
	slow := fmt.Errorf("took more than %s", s.patience)
	limited, cancel := context.WithTimeoutCause(ctx, s.patience, slow)
	defer cancel()
	words, err := b.Run(limited, install.Tool{
		Rootfs: rootfs, Dir: place, Args: []string{"/bin/sh", "-c", h.command},
		Env: []string{
			"PATH=" + strings.Join(append(search, "/usr/local/bin:/usr/bin:/bin"), ":"), "INIT_CWD=/work", "CI=true", "NO_COLOR=1", "NODE_ENV=production",
			"NODE=/usr/bin/node", "npm_node_execpath=/usr/bin/node", "npm_command=install", "npm_config_user_agent=npm", "npm_config_offline=true",
			"npm_lifecycle_event=" + h.name, "npm_lifecycle_script=" + h.command,
			"npm_package_name=" + name, "npm_package_version=" + p.Version, "npm_package_json=" + path.Join("/work", place, manifestFile),
			// Debian's headers and compilers, for the node-gyp of any package.
			"npm_config_nodedir=/usr", fmt.Sprintf("npm_config_jobs=%d", runtime.NumCPU()), "CC=gcc", "CXX=g++",
		},
	})
	if err == nil {
		return nil
	}
	fault := &image.PackageError{
		Site: "npm", Package: name + " " + p.Version, Cause: image.PackageUnbuilt, Err: err,
		Step: "check the needs of the package's script (no network, no credentials: docs/packages.md), or use another version",
	}
	var exit *image.ExitError
	switch {
	case errors.As(err, &exit):
		fault.Message = fmt.Sprintf("%s script (%s) ended with status %d", h.name, clip(h.command), exit.Status)
		if strings.HasPrefix(exit.Output, "out of memory\n") {
			fault.Message += ", out of memory"
		}
		lines := install.Lines(words, func(string) bool { return false })
		if lines = lines[max(0, len(lines)-scriptLines):]; len(lines) > 0 {
			fault.Message += ":\n" + strings.Join(lines, "\n")
		}
		return fault
	case ctx.Err() == nil && errors.Is(context.Cause(limited), slow):
		fault.Message = fmt.Sprintf("%s script (%s) %s", h.name, clip(h.command), slow)
		return fault
	}
	return err
}
