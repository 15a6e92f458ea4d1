package runtimes_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/ruby"
	"github.com/fre-engine/fre/template"
)

// gemSource is a source of gems on loopback with a password. It speaks the compact index of
// rubygems.org (guides.rubygems.org/rubygems-org-compact-index-api); the host's own gem build makes
// the gems.
type gemSource struct {
	t      *testing.T
	server *httptest.Server

	mu   sync.Mutex
	info map[string][]string // by gem, a line for each version
	gems map[string][]byte   // by file name
}

func newGemSource(t *testing.T) *gemSource {
	t.Helper()
	x := &gemSource{t: t, info: map[string][]string{}, gems: map[string][]byte{}}
	x.server = httptest.NewServer(x)
	t.Cleanup(x.server.Close)
	return x
}

// address returns the source's URL with its password.
func (x *gemSource) address() string {
	return strings.Replace(x.server.URL, "//", "//me:"+password+"@", 1)
}

func (x *gemSource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	dir, name := path.Split(r.URL.Path)
	if _, word, _ := r.BasicAuth(); word != password || name == "fretest_locked" {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	switch {
	case r.URL.Path == "/versions":
	case dir == "/info/" && x.info[name] != nil:
		_, _ = fmt.Fprintf(w, "---\n%s\n", strings.Join(x.info[name], "\n"))
	case dir == "/gems/" && x.gems[name] != nil:
		_, _ = w.Write(x.gems[name])
	default:
		http.NotFound(w, r)
	}
}

// add publishes a gem with these files. spec is Ruby code for the specification s, needs the
// requirements in the index: "dep:~> 1.0|ruby:>= 2".
func (x *gemSource) add(name, version, platform, spec, needs string, files map[string]string) {
	x.t.Helper()
	dir := x.t.TempDir()
	var names []string
	for file, text := range files {
		names = append(names, fmt.Sprintf("%q", file))
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755), os.WriteFile(filepath.Join(dir, file), []byte(text), 0o755)); err != nil {
			x.t.Fatal(err)
		}
	}
	slices.Sort(names)
	text := fmt.Sprintf("Gem::Specification.new do |s|\n s.name = %q\n s.version = %q\n s.platform = %q\n s.summary = s.author = 'test'\n s.files = [%s]\n %s\nend\n",
		name, version, platform, strings.Join(names, ", "), spec)
	if err := os.WriteFile(filepath.Join(dir, "x.gemspec"), []byte(text), 0o644); err != nil {
		x.t.Fatal(err)
	}
	cmd := exec.Command("gem", "build", "--silent", "--output", "x.gem", "x.gemspec")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		x.t.Fatalf("gem build: %v: %s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "x.gem"))
	if err != nil {
		x.t.Fatal(err)
	}
	full := version
	if platform != "ruby" {
		full += "-" + platform
	}
	deps, more, _ := strings.Cut(needs, "|")
	line := fmt.Sprintf("%s %s|checksum:%x", full, deps, sha256.Sum256(data))
	if more != "" {
		line += "," + more
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.info[name] = append(x.info[name], line)
	x.gems[name+"-"+full+".gem"] = data
}

// curiousGem is an extconf.rb that looks for secrets and the network, which a gem's build must not
// find.
const curiousGem = `require "mkmf"
require "socket"
seen = ENV.select { |_, v| v.include?("s3cret" + "-of-the-index") }.keys
Dir.glob("{/function,/work,/run,/tmp}/**/*", File::FNM_DOTMATCH).each do |f|
  seen << f if File.file?(f) && File.binread(f).include?("s3cret" + "-of-the-index")
rescue SystemCallError
end
begin
  Socket.tcp("127.0.0.1", %s, connect_timeout: 1) { seen << "the network" }
rescue SystemCallError, SocketError
end
require "fretest_words"
File.write("seen.h", "#define SEEN #{(FretestWords::HELLO + seen.inspect).dump}\n")
create_makefile("fretest_native/fretest_native")
`

// TestBuildGems builds from a private source of gems: from a list, from a Gemfile with and without
// its lock, with native code, and from a misbehaving source. The source's password reaches only the
// source, and no stored file or message.
func TestBuildGems(t *testing.T) {
	w := newWorkshop(t)
	x := newGemSource(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(x.server.URL, "http://"), ":")
	machine := map[string]string{"amd64": "x86_64-linux", "arm64": "aarch64-linux"}[runtime.GOARCH]
	words := func(version string) map[string]string {
		return map[string]string{"lib/fretest_words.rb": fmt.Sprintf("module FretestWords; HELLO = \"hello %s \"; end\n", version)}
	}
	x.add("fretest_words", "1.0.0", "ruby", "", "", words("1.0.0"))
	x.add("fretest_words", "1.2.0", "ruby", "", "", words("1.2.0"))
	x.add("fretest_words", "2.0.0", "ruby", "", "", words("2.0.0"))
	x.add("fretest_words", "1.9.0", "ruby", "s.required_ruby_version = '>= 99'", "|ruby:>= 99", words("1.9.0"))
	x.add("fretest_greet", "1.0.0", "ruby", "s.add_dependency 'fretest_words', '~> 1.0'; s.executables = ['fretest-greet']; s.bindir = 'exe'", "fretest_words:~> 1.0", map[string]string{
		"lib/fretest_greet.rb": "require 'fretest_words'\nmodule FretestGreet; def self.to(n) = FretestWords::HELLO + n; end\n",
		"exe/fretest-greet":    "#!/usr/bin/env ruby\nrequire 'fretest_greet'\nputs FretestGreet.to(ARGV[0])\n",
	})
	x.add("fretest_native", "1.0.0", "ruby", "s.add_dependency 'fretest_words', '~> 1.0'; s.extensions = ['ext/fretest_native/extconf.rb']", "fretest_words:~> 1.0", map[string]string{
		"lib/fretest_native.rb":               "require 'fretest_native/fretest_native'\n",
		"ext/fretest_native/extconf.rb":       fmt.Sprintf(curiousGem, port),
		"ext/fretest_native/fretest_native.c": "#include <ruby.h>\n#include \"seen.h\"\nvoid Init_fretest_native(void) { rb_define_global_const(\"FRETEST_SEEN\", rb_str_new_cstr(SEEN)); }\n",
	})
	for _, platform := range []string{"ruby", machine, machine + "-musl", "java"} {
		x.add("fretest_machine", "1.0.0", platform, "", "", map[string]string{"lib/fretest_machine.rb": fmt.Sprintf("FRETEST_MACHINE = %q\n", platform)})
	}
	x.add("fretest_broken", "1.0.0", "ruby", "s.extensions = ['extconf.rb']", "", map[string]string{"extconf.rb": "abort 'no header of fretest.h'\n"})
	x.add("fretest_wrong", "1.0.0", "ruby", "", "", words("0"))
	x.gems["fretest_wrong-1.0.0.gem"] = []byte("no gem")
	x.add("fretest_other", "1.0.0", "ruby", "", "", words("0"))
	x.gems["fretest_other-1.0.0.gem"] = x.gems["fretest_words-1.0.0.gem"]

	settings := w.Settings
	defer func() { w.Settings = settings }()
	w.Settings = settings.With(ruby.Settings{Sources: []string{x.address()}})
	var said strings.Builder
	var mu sync.Mutex
	w.report = func(e image.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(&said).Encode(e); err != nil {
			t.Error(err)
		}
	}
	const code = "require 'fretest_greet'\ndef handle(event, context) = FretestGreet.to('you')\n"
	files := map[string]string{
		"fret.yaml": "id: f\nbase: ruby\npackages: {gem: ['fretest_greet:>= 1, < 3', fretest_native, fretest_machine]}\n", "main.rb": code,
	}
	env := []string{"GEM_PATH=/opt/ruby:", "PATH=/opt/ruby/bin:/usr/bin:/bin"}
	img, lock, err := w.buildFiles(t, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	var locked []string
	for _, p := range section[*image.LockedPackages](lock, "gem").Packages {
		locked = append(locked, p.Name+" "+p.Version)
	}
	slices.Sort(locked)
	if diff := cmp.Diff([]string{"fretest_greet 1.0.0", "fretest_machine 1.0.0-" + machine, "fretest_native 1.0.0", "fretest_words 1.2.0"}, locked); diff != "" {
		t.Errorf("locked: -want +got:\n%s", diff)
	}
	for _, run := range [][2]string{
		{"the handler's way", "require 'fretest_greet'; print FretestGreet.to('you')"},
		{"machine", "require 'fretest_machine'; print FRETEST_MACHINE"},
		{"native", "require 'fretest_native'; print FRETEST_SEEN"},
		{"program", "print `fretest-greet you`.strip"},
	} {
		want := map[string]string{"the handler's way": "hello 1.2.0 you", "machine": machine, "native": "hello 1.2.0 []", "program": "hello 1.2.0 you"}[run[0]]
		if out := w.inside(t, img, env, "/usr/bin/ruby", "-e", run[1]); out != want {
			t.Errorf("%s: printed %q, want %q", run[0], out, want)
		}
	}

	// The build follows the lock and does not fetch known gems again.
	if again, _, err := w.buildFiles(t, files, lock); err != nil || !slices.Equal(partNames(again, "gem"), partNames(img, "gem")) {
		t.Errorf("with the lock: %v, %q", err, partNames(again, "gem"))
	} else if runs := w.runner.runs; slices.ContainsFunc(runs, func(r string) bool { return strings.Contains(r, "gem.rb") }) {
		t.Errorf("with the lock ran %q", runs)
	}

	// A Gemfile: the configuration's source takes the place of the file's own; development groups
	// are left out.
	const gemfile = "source 'https://gems.example'\nruby '>= 3.0'\ngem 'fretest_greet', '~> 1.0'\ngroup(:test) { gem 'fretest_broken' }\ngem 'fretest_nowhere', platforms: :jruby\n"
	project := map[string]string{"fret.yaml": "id: f\nbase: ruby\npackages: {gem: Gemfile}\n", "main.rb": code, "Gemfile": gemfile}
	names := func(l *image.Lock) string {
		var out []string
		for _, p := range section[*image.LockedPackages](l, "gem").Packages {
			out = append(out, p.Name+" "+p.Version)
		}
		return strings.Join(out, ", ")
	}
	if _, lock, err := w.buildFiles(t, project, nil); err != nil || names(lock) != "fretest_words 1.2.0, fretest_greet 1.0.0" {
		t.Errorf("a Gemfile: %v, %+v", err, lock)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(x.gems["fretest_words-1.0.0.gem"]))
	const gemfileLock = "GEM\n  remote: https://gems.example/\n  specs:\n    fretest_broken (1.0.0)\n    fretest_greet (1.0.0)\n      fretest_words (~> 1.0)\n    fretest_nowhere (1)\n    fretest_words (1.0.0)\n\n" +
		"PLATFORMS\n  ruby\n\nDEPENDENCIES\n  fretest_broken\n  fretest_greet (~> 1.0)\n  fretest_nowhere\n\nCHECKSUMS\n  fretest_words (1.0.0) sha256=%s\n\nBUNDLED WITH\n   2.3.7\n"
	project["Gemfile.lock"] = fmt.Sprintf(gemfileLock, sum)
	if _, lock, err := w.buildFiles(t, project, nil); err != nil || names(lock) != "fretest_words 1.0.0, fretest_greet 1.0.0" {
		t.Errorf("a Gemfile with its lock: %v, %+v", err, lock)
	}

	list := func(gem string) map[string]string {
		return map[string]string{"fret.yaml": "id: f\nbase: ruby\npackages:\n  gem: [" + gem + "]\n", "main.rb": code}
	}
	with := func(file, text string) map[string]string {
		return map[string]string{"fret.yaml": project["fret.yaml"], "main.rb": code, "Gemfile": gemfile, file: text}
	}
	const fret = image.PackageCause(-1) // the template's fault
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
		cause image.PackageCause
	}{
		"unknown":      {list("fretest_unknown"), "fretest_unknown", fret},
		"version":      {list("'fretest_words:>= 3'"), "fretest_words (>= 3)", fret},
		"conflict":     {list("fretest_greet, 'fretest_words:2.0.0'"), "fretest_words", fret},
		"locked":       {list("fretest_locked"), "HTTP error 401", image.SiteRefused},
		"broken":       {list("fretest_broken"), "no header of fretest.h", image.PackageUnbuilt},
		"wrong":        {list("fretest_wrong"), "fretest_wrong-1.0.0 is not a valid archive", image.PackageBad},
		"other":        {list("fretest_other"), "it contains fretest_words-1.0.0", image.PackageBad},
		"git":          {with("Gemfile", "source 'https://g.example'\ngem 'a', git: 'https://h.example/a.git'\n"), "a has its own source (git)", fret},
		"path":         {with("Gemfile", "source 'https://g.example'\ngem 'a', path: 'a'\n"), "a has its own source (path)", fret},
		"source":       {with("Gemfile", "source 'https://g.example'\ngem 'fretest_words', source: 'https://h.example'\n"), "fretest_words has its own source (rubygems)", fret},
		"sources":      {with("Gemfile", "source 'https://g.example'\nsource('https://h.example') { gem 'fretest_words' }\n"), "fretest_words has its own source (rubygems)", fret},
		"exit":         {with("Gemfile", "exit\n"), "There was an error parsing `Gemfile`: exit", fret},
		"no Ruby":      {with("Gemfile", "gem 'a'\nend\n"), "Gemfile", fret},
		"another Ruby": {with("Gemfile", "ruby '2.7.0'\n"), "needs Ruby 2.7.0, but the base has", fret},
		"stale":        {with("Gemfile.lock", strings.ReplaceAll(fmt.Sprintf(gemfileLock, sum), "greet (1.0.0)", "greet (0.9.0)")), "does not answer Gemfile any more (fretest_greet): run bundle lock", fret},
		"checksum":     {with("Gemfile.lock", fmt.Sprintf(gemfileLock, elsewhere)), "fretest_words-1.0.0: checksum mismatch: differs from the lock", image.PackageChanged},
		"other name":   {map[string]string{"fret.yaml": "id: f\nbase: ruby\npackages: {gem: gems.rb}\n", "main.rb": code, "gems.rb": gemfile}, "gems.rb is not named Gemfile", fret},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.buildFiles(t, tt.files, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			var e *image.PackageError
			var placed template.Errors
			if errors.As(err, &e) != (tt.cause != fret) || e != nil && e.Cause != tt.cause || errors.As(err, &placed) != (tt.cause == fret) {
				t.Errorf("got %+v, want the cause %d", e, tt.cause)
			}
			_, _ = fmt.Fprintln(&said, err)
		})
	}

	// An unreachable source, and a server without gems.
	closed := httptest.NewServer(nil)
	closed.Close()
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	for address, want := range map[string]string{
		closed.URL: "the source cannot be reached", empty.URL: "the source cannot be used: HTTP error 404",
	} {
		w.Settings = settings.With(ruby.Settings{Sources: []string{strings.Replace(address, "//", "//me:"+password+"@", 1)}})
		var down *image.PackageError
		_, _, err := w.buildFiles(t, list("fretest_greet"), nil)
		if !errors.As(err, &down) || down.Cause != image.SiteDown || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), password) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	w.Settings = settings.With(ruby.Settings{Sources: []string{x.address()}})

	// A locked version must keep its content at the source.
	forged := &image.LockedPackages{Request: section[*image.LockedPackages](lock, "gem").Request, Packages: slices.Clone(section[*image.LockedPackages](lock, "gem").Packages)}
	forged.Packages[0].Hashes = []string{"sha256:" + elsewhere}
	var changed *image.PackageError
	if _, _, err := w.buildFiles(t, files, lockOf("gem", forged)); !errors.As(err, &changed) || changed.Cause != image.PackageChanged {
		t.Errorf("a gem that is not the locked one: %v", err)
	}
	if strings.Contains(said.String(), password) {
		t.Errorf("the password was said: %s", &said)
	}
}
