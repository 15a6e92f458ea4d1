package template_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fre-engine/fre/runtimes"
	. "github.com/fre-engine/fre/template"
)

var ignoreSource = cmpopts.IgnoreUnexported(Template{})

// TestParseTemplateDefaults: A template without a key gets the documented default, and each base
// has its runtime.
func TestParseTemplateDefaults(t *testing.T) {
	base := func(change func(*Template)) *Template {
		t := &Template{
			ID: "f", Version: "latest", Contract: ContractFRE, Code: Code{Path: "."}, Tenant: "default", Network: Network{Mode: NetworkNone}, Events: DefaultEvents(),
			Instances: Instances{Isolation: IsolationInstance, Fork: ForkAuto, Concurrency: 1, Max: 64, Idle: 5 * time.Minute},
			Resources: Resources{
				MemoryBytes: 128 << 20, CPUMillis: 1000, Pids: 64,
				TmpBytes: 64 << 20, Files: 1024, Timeout: 30 * time.Second,
			},
		}
		change(t)
		t.Runtime = t.Base
		return t
	}
	for _, c := range []struct {
		name, src string
		want      *Template
	}{
		{"python", "id: f\nbase: python\n", base(func(t *Template) { t.Base, t.Handler = "python", "main.handle" })},
		{"node", "id: f\nbase: node\n", base(func(t *Template) { t.Base, t.Handler = "node", "index.handle" })},
		{"native", "id: f\nbase: native\nhandler: clock\n", base(func(t *Template) {
			t.Base, t.Contract, t.Handler, t.Instances.Isolation = "native", ContractStdio, "clock", IsolationEvent
		})},
		{"many events at once", "id: f\nbase: python\ninstances: {concurrency: 100}\n", base(func(t *Template) {
			t.Base, t.Handler, t.Instances.Concurrency, t.Resources.Pids = "python", "main.handle", 100, 200
		})},
		{"runtime with a base of its own", "id: f\nruntime: go\n", func() *Template {
			t := base(func(t *Template) { t.Handler = "Handle" })
			t.Runtime = "go"
			return t
		}()},
		{"pipeline", "id: f\npipeline: [a, b@2]\nresources: {timeout: 5s}\n", func() *Template {
			t := base(func(t *Template) { t.Contract, t.Resources.Timeout = "", 5*time.Second })
			t.Pipeline = []string{"a", "b@2"}
			return t
		}()},
		{"windows line ends and a byte order mark", "\ufeffid: f\r\nbase: python\r\n", base(func(t *Template) { t.Base, t.Handler = "python", "main.handle" })},
		{"every field", `---
# everything there is
id: f
version: "1.2"
base: python
packages: {pip: ["lxml==5.3.0", 'requests[socks] >= 2; python_version > "3"'], npm: [], maven: [], deb: []}
libs: []
code:
  path: ./src/
handler: app.main
env:
  A: text
  B: 12
  C: true
  D: 1.50
  E: |
    two
    lines
tenant: acme
instances: {isolation: instance, fork: never, concurrency: 8, min: 1, max: 2, idle: 90s}
resources:
  memory: 64M
  cpu: 500m
  pids: 16
  tmp: 65536
  files: 256
  timeout: 1h30m
network: {mode: egress, allow: [example.org, "*.example.org", 198.51.100.0/24, "2001:db8::/32", "API.example.com:443"]}
`, &Template{
			ID: "f", Version: "1.2", Base: "python", Runtime: "python", Contract: ContractFRE,
			Packages: Packages{"pip": {List: []string{"lxml==5.3.0", `requests[socks] >= 2; python_version > "3"`}}},
			Code:     Code{Path: "src"}, Handler: "app.main",
			Env:       map[string]string{"A": "text", "B": "12", "C": "true", "D": "1.50", "E": "two\nlines\n"},
			Tenant:    "acme",
			Instances: Instances{Isolation: IsolationInstance, Fork: ForkNever, Concurrency: 8, Min: 1, Max: 2, Idle: 90 * time.Second},
			Resources: Resources{MemoryBytes: 64e6, CPUMillis: 500, Pids: 16, TmpBytes: 65536, Files: 256, Timeout: 90 * time.Minute},
			Network:   Network{Mode: NetworkEgress, Allow: []string{"example.org", "*.example.org", "198.51.100.0/24", "2001:db8::/32", "API.example.com:443"}},
			Events:    DefaultEvents(),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := runtimes.Dialect().Parse("fret.yaml", []byte(c.src))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, ignoreSource, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The test compares the whole message, because users read it.
func TestParseTemplateErrors(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{
			"unknown key", "id: f\nbase: python\nhandlr: main.handle\n",
			`fret.yaml:3:1: unknown key "handlr" in template (did you mean "handler"?)
    handlr: main.handle
    ^`,
		},
		{
			"unknown key below", "id: f\nbase: python\nresources:\n  memry: 1GiB\n",
			`fret.yaml:4:3: unknown key "memry" in resources (did you mean "memory"?)
      memry: 1GiB
      ^`,
		},
		{
			"pipeline with a program", "id: f\npipeline: [a, f@1]\nbase: python\nresources:\n  cpu: 1\n",
			`fret.yaml:2:15: pipeline[1] is the pipeline itself: an endless cycle
    pipeline: [a, f@1]
                  ^
fret.yaml:3:7: base is not for pipelines: a pipeline has steps only
    base: python
          ^
fret.yaml:5:8: resources.cpu is not for pipelines: set the field in the template of each step
      cpu: 1
           ^`,
		},
		{
			"key of another level", "id: f\nbase: python\ntimeout: 1s\n",
			`fret.yaml:3:1: unknown key "timeout" in template (did you mean "resources.timeout"?)
    timeout: 1s
    ^`,
		},
		{
			"duplicate key", "id: f\nbase: python\nid: g\n",
			`fret.yaml:3:1: duplicate key "id" in template (first on line 1)
    id: g
    ^`,
		},
		{
			"missing keys", "version: x\n",
			`fret.yaml:1:1: missing key "id" in template
    version: x
    ^
fret.yaml:1:1: missing key "base" in template: name a base environment such as "python", or a runtime
    version: x
    ^`,
		},
		{
			"missing native handler", "id: f\nbase: native\n",
			`fret.yaml:1:1: missing key "handler" in template: the runtime native needs the path of the program, such as "bin/clock"
    id: f
    ^`,
		},
		{
			"several", "id: F\nbase: python\nresources: {memory: 128XB, cpu: fast, timeout: 30}\n",
			`fret.yaml:1:5: bad id "F": lower-case letters, digits and dashes, at most 63, not beginning with a dash
    id: F
        ^
fret.yaml:3:21: resources.memory: unknown unit "XB" in size "128XB": use KiB, MiB, GiB (powers of two) or K, M, G (powers of ten)
    resources: {memory: 128XB, cpu: fast, timeout: 30}
                        ^
fret.yaml:3:33: resources.cpu: "fast" is not an amount of cpu: write for example "500m" (half a core) or "1.5"
    resources: {memory: 128XB, cpu: fast, timeout: 30}
                                    ^
fret.yaml:3:48: resources.timeout: duration "30" has no unit: write for example "30s"
    resources: {memory: 128XB, cpu: fast, timeout: 30}
                                                   ^`,
		},
		{
			"version as a number", "id: f\nbase: python\nversion: 0.10\n",
			`fret.yaml:3:10: version must be a string, not a number: put it in quotes, "0.10"
    version: 0.10
             ^`,
		},
		{
			"list for a mapping", "id: f\nbase: python\npackages:\n  - lxml\n",
			`fret.yaml:4:3: packages must be a mapping with keys such as pip, npm, maven, not a list
      - lxml
      ^`,
		},
		{
			"number for a list", "id: f\nbase: python\npackages:\n  pip: 7\n",
			`fret.yaml:4:8: packages.pip must be a list, or the name of a file, not a number
      pip: 7
           ^`,
		},
		{
			"nothing for a mapping", "id: f\nbase: python\npackages:\n",
			`fret.yaml:3:10: packages must be a mapping with keys such as pip, npm, maven, not empty
    packages:
             ^`,
		},
		{
			"option as a package", "id: f\nbase: python\npackages:\n  pip:\n    - --index-url=x\n",
			`fret.yaml:5:7: packages.pip[0]: bad requirement "--index-url=x": write a requirement such as "lxml==5.3.0"; options, URLs and paths are not supported yet
        - --index-url=x
          ^`,
		},
		{
			"too little memory", "id: f\nbase: python\nresources:\n  memory: 1MiB\n",
			`fret.yaml:4:11: resources.memory must be between 4MiB and 4TiB, not 1MiB
      memory: 1MiB
              ^`,
		},
		{
			"max below min", "id: f\nbase: python\ninstances:\n  min: 3\n  max: 2\n",
			`fret.yaml:5:8: instances.max (2) is less than instances.min (3)
      max: 2
           ^`,
		},
		{
			"too few threads", "id: f\nbase: python\ninstances: {concurrency: 64}\nresources:\n  pids: 64\n",
			`fret.yaml:5:9: resources.pids must be at least 72: an instance needs a thread for each of its events (instances.concurrency is 64) and 8 for its runtime
      pids: 64
            ^`,
		},
		{
			"concurrency of a fresh sandbox", "id: f\nbase: python\ninstances: {isolation: event, concurrency: 2}\n",
			`fret.yaml:3:44: instances.concurrency must be 1 with isolation "event": every event has a separate sandbox
    instances: {isolation: event, concurrency: 2}
                                               ^`,
		},
		{
			"reserved name", "id: f\nbase: python\nenv:\n  FRE_ID: x\n  a-b: y\n",
			`fret.yaml:4:3: name "FRE_ID" in env is reserved: names beginning with FRE_ are the engine's
      FRE_ID: x
      ^
fret.yaml:5:3: bad name "a-b" in env: letters, digits and _, not beginning with a digit
      a-b: y
      ^`,
		},
		{
			"password in an address", "id: f\nbase: python\ncode:\n  git: {url: 'https://secret@example.org/x'}\n",
			`fret.yaml:4:14: code.git.url contains a user: put credentials into the engine's configuration (packages.git), and name the credential in code.git.auth
      git: {url: 'https://secret@example.org/x'}
                 ^`,
		},
		{
			"archive and git", "id: f\nbase: python\ncode:\n  archive: a.zip\n  git: {url: 'https://example.org/x'}\n",
			`fret.yaml:5:8: code.archive and code.git exclude each other: remove either
      git: {url: 'https://example.org/x'}
           ^`,
		},
		{
			"code outside", "id: f\nbase: python\ncode: {path: a/../../b}\n",
			`fret.yaml:3:14: code.path "../b" leaves the template's directory
    code: {path: a/../../b}
                 ^`,
		},
		{
			"not supported yet", "id: f\nbase: python\npackages: {maven: [a], deb: [b]}\nlibs: [c]\n",
			`fret.yaml:3:20: packages.maven[0]: bad requirement "a": write "group:artifact:version" or "group:artifact:version:classifier", or "group:artifact" with a "group:artifact:version@bom" that says the version
    packages: {maven: [a], deb: [b]}
                       ^
fret.yaml:3:30: packages.deb[0]: bad requirement "b": write a Debian package such as "curl" or "ghostscript=10.*"
    packages: {maven: [a], deb: [b]}
                                 ^
fret.yaml:4:8: libs[0]: bad requirement "c": write a library's soname, for example "libxml2.so.2"
    libs: [c]
           ^`,
		},
		{
			"unknown network mode", "id: f\nbase: python\nnetwork: bridge\n",
			`fret.yaml:3:10: network must be "none", "egress" or "host", not "bridge"
    network: bridge
             ^`,
		},
		{
			"bad destinations", "id: f\nbase: python\nnetwork:\n  mode: egress\n  allow:\n    - 10.1.2.3/24\n    - 300.1.2.3\n    - \"example.org:0\"\n    - exa mple.org\n",
			`fret.yaml:6:7: network.allow[0]: bad destination "10.1.2.3/24": "10.1.2.3/24" has bits beyond the prefix length: write 10.1.2.0/24
        - 10.1.2.3/24
          ^
fret.yaml:7:7: network.allow[1]: bad destination "300.1.2.3": "300.1.2.3" is neither a name nor an address or range of addresses
        - 300.1.2.3
          ^
fret.yaml:8:7: network.allow[2]: bad destination "example.org:0": port "0" is not a number from 1 to 65535
        - "example.org:0"
          ^
fret.yaml:9:7: network.allow[3]: bad destination "exa mple.org": write a name such as "example.org" or "*.example.org", or a range such as "198.51.100.0/24", with ":443" appended for a single port; write names outside ASCII as xn--…
        - exa mple.org
          ^`,
		},
		{
			"allow-list without egress", "id: f\nbase: python\nnetwork: {mode: none, allow: [a.org]}\n",
			`fret.yaml:3:30: network.allow is for the mode egress, but the network's mode is none
    network: {mode: none, allow: [a.org]}
                                 ^`,
		},
		{
			"connection of a runtime that knows none", "id: f\nbase: python\nnetwork: {mode: none, lend_connection: true}\n",
			`fret.yaml:3:40: network.lend_connection is for the runtime go, and for native with instances.isolation "instance", but the template's runtime is python
    network: {mode: none, lend_connection: true}
                                           ^`,
		},
		{
			"empty allow-list", "id: f\nbase: python\nnetwork: {mode: egress, allow: []}\n",
			`fret.yaml:3:32: network.allow is empty: list allowed destinations, or remove the key to allow the public internet
    network: {mode: egress, allow: []}
                                   ^`,
		},
		{
			"tab", "id: f\nbase: python\nenv:\n\tA: b\n",
			`fret.yaml:4:1: a tab in the indentation: YAML wants spaces
     A: b
    ^`,
		},
		{"empty", "", `fret.yaml: the template is empty: write at least id and base`},
		{"comments only", "# nothing\n", `fret.yaml: the template is empty: write at least id and base`},
		{
			"scalar", "hello\n",
			`fret.yaml:1:1: a template is a mapping of keys to values, not a string
    hello
    ^`,
		},
		{
			"two documents", "id: f\nbase: python\n---\nid: g\n",
			`fret.yaml:3:1: a second document: a template is a single YAML document
    ---
    ^`,
		},
		{
			"alias", "id: &a f\nbase: *a\n",
			`fret.yaml:1:5: an anchor is not allowed in a template: write the value out, or put it in quotes
    id: &a f
        ^`,
		},
		{
			"merge key", "id: f\nbase: python\nenv:\n  <<: {A: b}\n",
			`fret.yaml:4:3: a merge key is not allowed in a template: write the value out, or put it in quotes
      <<: {A: b}
      ^`,
		},
		{
			"tag", "id: !!binary f\nbase: python\n",
			`fret.yaml:1:5: a tag is not allowed in a template: write the value out, or put it in quotes
    id: !!binary f
        ^`,
		},
		{
			"not UTF-8", "id: f\nbase: \xff\n",
			"fret.yaml:2:7: a byte or control character that is not YAML text: save the file as UTF-8\n    base: \ufffd\n          ^",
		},
		{
			"escape sequence", "id: f\n# \x1b[2J\n",
			"fret.yaml:2:3: a byte or control character that is not YAML text: save the file as UTF-8\n    # \ufffd[2J\n      ^",
		},
		{
			"unclosed", "id: f\nbase: [python\n",
			`fret.yaml:2:7: sequence end token ']' not found
    base: [python
          ^`,
		},
		{
			"column in characters", "id: f\nbase: python\nenv: {A: größe, b-c: x}\n",
			`fret.yaml:3:17: bad name "b-c" in env: letters, digits and _, not beginning with a digit
    env: {A: größe, b-c: x}
                    ^`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := runtimes.Dialect().Parse("fret.yaml", []byte(c.src))
			if err == nil {
				t.Fatalf("%q: no error", c.src)
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			var one *Error
			if !errors.As(err, &one) || one.File != "fret.yaml" {
				t.Errorf("no *Error in %T", err)
			}
		})
	}
}

// TestParseTemplateBounds: The parser refuses a template that is too large or nested too deep.
func TestParseTemplateBounds(t *testing.T) {
	for name, src := range map[string]string{
		"large":          "id: f\nbase: python\n# " + strings.Repeat("x\n# ", 1<<19),
		"long line":      "id: f # " + strings.Repeat("x", 1<<19),
		"flow depth":     "id: " + strings.Repeat("[", 8000),
		"flow lines":     "id: " + strings.Repeat("[\n", 500_000),
		"mapping depth":  "id: " + strings.Repeat("{a: ", 2000),
		"compact depth":  strings.Repeat("- ", 4000),
		"question marks": strings.Repeat("? ", 4000),
		"block depth":    deepBlock(200),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := runtimes.Dialect().Parse("fret.yaml", []byte(src))
			if err == nil {
				t.Fatal("no error")
			}
			if len(err.Error()) > 500 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

func deepBlock(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestManyErrorsArePrintedTenAtMost(t *testing.T) {
	src := "id: f\nbase: python\n" + strings.Repeat("x", 1)
	for range 14 {
		src += "x"
		src += ": 1\n" + strings.Repeat("x", strings.Count(src, "\n"))
	}
	_, err := runtimes.Dialect().Parse("fret.yaml", []byte(src+": 1\n"))
	var list Errors
	if !errors.As(err, &list) || len(list) != 15 {
		t.Fatalf("got %v", err)
	}
	if got := strings.Count(err.Error(), "unknown key"); got != 10 {
		t.Errorf("%d faults printed, want 10:\n%s", got, err)
	}
	if !strings.HasSuffix(err.Error(), "and 5 more") {
		t.Errorf("the rest is not counted:\n%s", err)
	}
}

// FuzzParseTemplate: Any template is parsed or refused without a panic.
func FuzzParseTemplate(f *testing.F) {
	for _, s := range []string{
		"", "id: f\nbase: python\n", "id: &a [*a]", "a: {b: [c, {d: e}]}", "? - a\n: - b\n", "---\n...\n---\n", "id: |+2\n  x\n",
		"id: f\nbase: node\npackages: {npm: ['@a/b@^1']}\nresources: {memory: 1.5GiB, cpu: 0x10, tmp: 1e9}\n",
		"%YAML 1.2\n---\na: !!str b", "\"a\\u0000\": b", "a: 'b\n c'", "<<: {}", "id: f\nbase: python\nenv: {? {a: b} : c}",
		"id: f\nbase: python\nnetwork: {mode: egress, allow: ['*.a.org:443', 10.0.0.0/8, '[2001:db8::]:1']}\n",
		"id: f\npipeline: [a, b@2, c@latest]\nresources: {timeout: 5s}\n", "id: f\npipeline: [f, 'a|b', a.b]\nbase: python\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		got, err := runtimes.Dialect().Parse("f", src)
		if err != nil {
			var one *Error
			if !errors.As(err, &one) {
				t.Fatalf("%q: error of type %T", src, err)
			}
			_ = err.Error()
			return
		}
		if pipeline := got.Pipeline != nil; pipeline == (got.Base+got.Runtime != "") || pipeline && CheckSteps(got.Pipeline) != nil {
			t.Errorf("%q: accepted as %+v", src, got)
		}
		if !ValidName(got.ID) || got.Resources.MemoryBytes < 4<<20 {
			t.Errorf("%q: accepted as %+v", src, got)
		}
	})
}
