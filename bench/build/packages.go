package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/stats"
	"github.com/fre-engine/fre/image"
)

// The peers' versions.
const (
	uvVersion   = "0.13.8"
	pnpmVersion = "10.28.0"
)

// tools holds the paths of the peers' programs.
type tools struct{ uv, pnpm string }

// newTools installs uv and pnpm into dir with the host's pip and npm.
func newTools(ctx context.Context, dir string) (*tools, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	err := command(ctx, dir, nil, "python3", "-m", "pip", "install", "--quiet", "--target", dir, "uv=="+uvVersion)
	if err == nil {
		err = command(ctx, dir, nil, "npm", "install", "--silent", "--prefix", dir, "pnpm@"+pnpmVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("the peers: %w (make deps-bench installs what this needs)", err)
	}
	return &tools{uv: filepath.Join(dir, "bin/uv"), pnpm: filepath.Join(dir, "node_modules/.bin/pnpm")}, nil
}

// lists holds the measurements of one package site.
type lists struct {
	Site     string    `json:"site"`
	Packages int       `json:"packages"` // number of packages, dependencies included
	Cold     []*series `json:"cold"`
	Warm     []*series `json:"warm"`
}

// site is a package site with the requested packages.
type site struct {
	name, base, section string
	requests            []string
	other               string // a package outside the closure of requests: its build fetches the site's tools for FRE
	file, code          string // name and content of the function's source file
	handler             string
	compile             []string // command that compiles the source for FRE, because only packages are measured
	// peers sets up the peers in a directory of their own, and returns the series with empty caches
	// and the series with the caches that the first series left.
	peers func(dir string, t *tools, requests []string) (cold, warm []*series, err error)
}

var sites = []site{
	{
		name: "PyPI", base: "python", section: "pip",
		requests: []string{
			"fastapi==0.115.6", "uvicorn==0.34.0", "requests==2.32.3", "numpy==2.4.6", "pillow==13.0.0", "lxml==6.1.3",
			"jinja2==3.1.6", "sqlalchemy==2.1.9", "httpx==0.28.1",
		},
		other: "six==1.17.0",
		file:  "main.py", code: "# %d\ndef handle(event, context):\n    return 1\n", handler: "main.handle",
		peers: pythonPeers,
	},
	{
		name: "npm", base: "node", section: "npm",
		requests: []string{"express@4.21.2", "eslint@9.17.0", "webpack@5.97.1"}, other: "left-pad@1.3.0",
		file: "index.js", code: "// %d\nexports.handle = () => 1;\n", handler: "index.handle",
		peers: nodePeers,
	},
	{
		name: "Maven Central", base: "java", section: "maven",
		requests: []string{
			"com.fasterxml.jackson.core:jackson-databind:2.18.2", "org.apache.lucene:lucene-queryparser:9.12.1",
			"com.google.guava:guava:33.3.1-jre", "org.apache.commons:commons-text:1.12.0", "com.squareup.okhttp3:okhttp:4.12.0",
			"org.slf4j:slf4j-simple:2.0.16", "org.postgresql:postgresql:42.7.4", "io.netty:netty-handler:4.1.115.Final",
		},
		other: "javax.inject:javax.inject:1",
		file:  "Handler.java", code: "public class Handler { public Object handle(Object event, Object context) { return %d; } }\n", handler: "Handler.handle",
		compile: []string{"javac", "--release", "17", "-d", "src", "Handler.java"},
		peers:   mavenPeers,
	},
}

func (r *result) measurePackages(ctx context.Context, e *engine.Engine, t *tools, o options) error {
	for _, s := range sites {
		l := &lists{Site: s.name}
		r.Packages = append(r.Packages, l)
		if err := l.measure(ctx, e, t, &s, o); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (l *lists) measure(ctx context.Context, e *engine.Engine, t *tools, s *site, o options) error {
	if _, err := e.CLI(ctx, "build", "--base", s.base); err != nil {
		return err
	}
	dir := filepath.Join(e.Dir(), s.section)
	peers := filepath.Join(dir, "peers")
	if err := os.MkdirAll(peers, 0o755); err != nil {
		return err
	}
	cold, warm, err := s.peers(peers, t, s.requests)
	if err != nil {
		return err
	}
	f := function{engine: e, site: s, dir: filepath.Join(dir, "function")}
	l.Cold = append([]*series{{Name: "fre build", prepare: f.forget, do: f.build}}, cold...)
	l.Warm = append([]*series{{Name: "fre build", prepare: f.edit, do: f.build}}, warm...)
	// Run each series once uncounted, to fill the mirror.
	for _, s := range l.Cold {
		if err := turns(ctx, []*series{s}, 1); err != nil {
			return err
		}
		s.Times = nil
	}
	if err := turns(ctx, l.Cold, o.cold); err != nil {
		return err
	}
	if err := turns(ctx, l.Warm, o.warm); err != nil {
		return err
	}
	l.Packages, err = f.packages()
	return err
}

// function is the function that FRE builds.
type function struct {
	engine *engine.Engine
	site   *site
	dir    string
	n      int // number of edits
}

// edit changes the function's code.
func (f *function) edit(ctx context.Context) error { return f.write(ctx, f.site.requests) }

func (f *function) write(ctx context.Context, requests []string) error {
	f.n++
	src := filepath.Join(f.dir, "src")
	code := src
	if f.site.compile != nil {
		code = f.dir
	}
	quoted, err := json.Marshal(requests)
	if err != nil {
		return err
	}
	template := fmt.Sprintf("id: bench-build-%s\nbase: %s\npackages: {%s: %s}\ncode: {path: src}\nhandler: %s\n",
		f.site.section, f.site.base, f.site.section, quoted, f.site.handler)
	err = errors.Join(os.MkdirAll(src, 0o755), os.WriteFile(filepath.Join(f.dir, "fret.yaml"), []byte(template), 0o644),
		os.WriteFile(filepath.Join(code, f.site.file), fmt.Appendf(nil, f.site.code, f.n), 0o644))
	if err != nil || f.site.compile == nil {
		return err
	}
	return command(ctx, f.dir, nil, f.site.compile[0], f.site.compile[1:]...)
}

func (f *function) build(ctx context.Context) error {
	_, err := f.engine.CLI(ctx, "build", "--quiet", f.dir)
	return err
}

// forget removes all images, locks and downloads: the next build resolves and downloads the
// packages again. The base environment stays. The tools (uv, Maven's plugins) stay too, like the
// peers' tools.
func (f *function) forget(ctx context.Context) error {
	for _, args := range [][]string{{"image", "prune", "--all"}, {"system", "gc", "--cache"}} {
		if _, err := f.engine.CLI(ctx, args...); err != nil {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(f.dir), f.write(ctx, []string{f.site.other})); err != nil {
		return err
	}
	if err := f.build(ctx); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(f.dir), f.edit(ctx))
}

// packages returns the number of packages in the lock.
func (f *function) packages() (int, error) {
	text, err := os.ReadFile(filepath.Join(f.dir, image.LockFile))
	if err != nil {
		return 0, err
	}
	type section struct {
		Packages []json.RawMessage `json:"packages"`
	}
	var lock struct {
		Pip, Maven *section
		NPM        *struct {
			PackageLock struct {
				Packages map[string]json.RawMessage `json:"packages"`
			} `json:"package_lock"`
		}
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		return 0, err
	}
	switch {
	case lock.Pip != nil:
		return len(lock.Pip.Packages), nil
	case lock.Maven != nil:
		return len(lock.Maven.Packages), nil
	case lock.NPM == nil:
		return 0, errors.New("the lock has no packages")
	}
	return len(lock.NPM.PackageLock.Packages) - 1, nil // subtract the function's own entry
}

// clean returns a step that removes the directories.
func clean(dirs ...string) func(context.Context) error {
	return func(context.Context) error {
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, os.RemoveAll(dir))
		}
		return errors.Join(errs...)
	}
}

// pythonPeers compares pip, and uv with and without bytecode. fre build and pip compile bytecode;
// uv leaves compiling to the first import. The warm series install from uv's cache by hard links.
func pythonPeers(dir string, t *tools, requests []string) (cold, warm []*series, err error) {
	list, target := filepath.Join(dir, "requirements.txt"), filepath.Join(dir, "target")
	if err := os.WriteFile(list, []byte(strings.Join(requests, "\n")+"\n"), 0o644); err != nil {
		return nil, nil, err
	}
	uv := func(cache string, more ...string) func(context.Context) error {
		args := append([]string{"pip", "install", "--quiet", "--target", target, "-r", list, "--cache-dir", cache, "--link-mode", "hardlink"}, more...)
		return func(ctx context.Context) error { return command(ctx, dir, nil, t.uv, args...) }
	}
	pip := func(ctx context.Context) error {
		return command(ctx, dir, nil, "python3", "-m", "pip", "install", "--quiet", "--target", target, "-r", list, "--no-cache-dir")
	}
	one, two := filepath.Join(dir, "uv"), filepath.Join(dir, "uv-bytecode")
	return []*series{
			{Name: "uv pip install --compile-bytecode", prepare: clean(target, two), do: uv(two, "--compile-bytecode")},
			{Name: "uv pip install", prepare: clean(target, one), do: uv(one)},
			{Name: "pip install", prepare: clean(target), do: pip},
		}, []*series{
			{Name: "uv pip install --compile-bytecode", prepare: clean(target), do: uv(two, "--compile-bytecode", "--offline")},
			{Name: "uv pip install", prepare: clean(target), do: uv(one, "--offline")},
		}, nil
}

// nodePeers compares pnpm. pnpm runs no install scripts here, and neither does fre build.
func nodePeers(dir string, t *tools, requests []string) (cold, warm []*series, err error) {
	dependencies := map[string]string{}
	for _, r := range requests {
		name, version, _ := strings.Cut(r, "@")
		dependencies[name] = version
	}
	text, err := json.Marshal(map[string]any{"name": "bench", "version": "1.0.0", "dependencies": dependencies})
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), text, 0o644); err != nil {
		return nil, nil, err
	}
	modules, store, lock := filepath.Join(dir, "node_modules"), filepath.Join(dir, "store"), filepath.Join(dir, "pnpm-lock.yaml")
	cache := filepath.Join(dir, "cache")
	pnpm := func(more ...string) func(context.Context) error {
		args := append([]string{"install", "--silent", "--ignore-scripts", "--store-dir", store, "--config.cache-dir=" + cache}, more...)
		return func(ctx context.Context) error { return command(ctx, dir, nil, t.pnpm, args...) }
	}
	return []*series{{Name: "pnpm install", prepare: clean(modules, store, cache, lock), do: pnpm()}},
		[]*series{{Name: "pnpm install --frozen-lockfile --offline", prepare: clean(modules), do: pnpm("--frozen-lockfile", "--offline")}}, nil
}

// mavenPeers compares Maven, with the plugins already downloaded.
func mavenPeers(dir string, _ *tools, requests []string) (cold, warm []*series, err error) {
	var b strings.Builder
	b.WriteString("<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><dependencies>\n")
	for _, r := range requests {
		c := strings.Split(r, ":")
		fmt.Fprintf(&b, "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n", c[0], c[1], c[2])
	}
	b.WriteString("</dependencies></project>\n")
	if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(b.String()), 0o644); err != nil {
		return nil, nil, err
	}
	plugins, local, out := filepath.Join(dir, "plugins"), filepath.Join(dir, "local"), filepath.Join(dir, "out")
	mvn := func(pom, repository string, more ...string) func(context.Context) error {
		args := append([]string{
			"--quiet", "--batch-mode", "-f", pom, "-Dmaven.repo.local=" + repository,
			"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=" + out,
		}, more...)
		return func(ctx context.Context) error { return command(ctx, dir, nil, "mvn", args...) }
	}
	withPlugins := func(ctx context.Context) error {
		if _, err := os.Stat(plugins); err != nil {
			// Building an empty project fetches the plugin's dependencies.
			empty := filepath.Join(dir, "empty.xml")
			text := "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>empty</artifactId><version>1</version></project>\n"
			if err := os.WriteFile(empty, []byte(text), 0o644); err != nil {
				return err
			}
			if err := mvn(empty, plugins)(ctx); err != nil {
				return err
			}
		}
		if err := clean(local, out)(ctx); err != nil {
			return err
		}
		return command(ctx, dir, nil, "cp", "-a", plugins, local)
	}
	pom := filepath.Join(dir, "pom.xml")
	return []*series{{Name: "mvn dependency:copy-dependencies", prepare: withPlugins, do: mvn(pom, local)}},
		[]*series{{Name: "mvn -o dependency:copy-dependencies", prepare: clean(out), do: mvn(pom, local, "-o")}}, nil
}

func (l *lists) markdown(p func(format string, args ...any)) {
	p("## %s: %d packages\n\nSeconds until all packages are in place. *Cold*: no lock and no cache, but the tools are installed. *Warm*: the lock and all packages exist.\n", l.Site, l.Packages)
	p("| | rounds | p50 | slowest | fre ÷ this, p50 |\n|---|---:|---:|---:|---:|")
	for _, part := range []struct {
		name string
		all  []*series
	}{{"cold", l.Cold}, {"warm", l.Warm}} {
		for _, s := range part.all {
			sum := stats.Summarize(s.Times)
			p("| %s: %s | %d | %s | %s | %.2f |", part.name, s.Name, len(s.Times), seconds(sum.P50), seconds(sum.Slowest), stats.Ratio(part.all[0].p50(), sum.P50))
		}
	}
	p("")
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()) }
