package runtimes_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/template"
)

var update = flag.Bool("update", false, "write the published schema from the table of keys")

// TestSchemaPublished: api/template.schema.json is the schema of the parser's table of keys, the
// runtimes and the package sites. `go test ./runtimes -run TestSchemaPublished -update` writes the
// file.
func TestSchemaPublished(t *testing.T) {
	want, err := runtimes.Dialect().Schema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("../api/template.schema.json", want, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(api.TemplateSchema, want) {
		t.Error("api/template.schema.json is out of date: run go test ./runtimes -run TestSchemaPublished -update")
	}
}

func compileSchema(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	var schema jsonschema.Schema
	if err := json.Unmarshal(api.TemplateSchema, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// The schema and the parser agree about each document here.
func TestSchemaAgreesWithParser(t *testing.T) {
	schema := compileSchema(t)
	const head = "id: f\nbase: python\n"
	for _, c := range []struct {
		src  string
		good bool
	}{
		{head, true},
		{"id: f\nbase: native\nhandler: bin/clock\n", true},
		{"id: f\nbase: native:trixie\nhandler: bin/clock\n", true},
		{"id: f\nbase: native:trixie\n", false},
		{"id: f\nbase: python:trixie\npackages: {pip: [lxml]}\n", true},
		{"id: f\nbase: node:trixie\npackages: {pip: [lxml]}\n", false},
		{"id: f\nbase: node:trixie\nruntime: python\n", false},
		{"id: f\nbase: 'python:'\n", false},
		{"id: f\nbase: python:13\n", false},
		{"id: f\nbase: cobol:trixie\n", false},
		{"id: f\nbase: oci:host.example:5000/team/app:1.2\nruntime: python\npackages: {pip: [lxml], npm: [left-pad]}\n", true},
		{"id: f\nbase: oci:debian\nruntime: native\nhandler: a\n", true},
		{"id: f\nbase: oci:debian\n", false},
		{"id: f\nbase: 'oci:'\nruntime: python\n", false},
		{"id: f\nbase: 'oci: x'\nruntime: python\n", false},
		{"id: f\nbase: archive:images/base.tar\nruntime: node\n", true},
		{"id: f\nbase: archive:/base.tar\nruntime: node\n", false},
		{"id: f\nbase: layout:base\nruntime: node\n", true},
		{"id: f\nbase: dir:../root\nruntime: node\n", false},
		{"id: f\nbase: dir:a/../../root\nruntime: node\n", false},
		{"id: f\nbase: dir:root\nruntime: cobol\n", false},
		{"id: f\nbase: native\nhandler: a\ninstances: {isolation: event, max: 3}\n", true},
		{"id: f\nbase: node\npackages: {npm: [left-pad@1.3.0, '@scope/name@^2', '@a/b', x@latest, 'y@>=1 <2']}\n", true},
		{"id: f\nbase: node\npackages: {npm: [bcrypt, '@a/b@2'], npm_scripts: [bcrypt, '@a/b']}\n", true},
		{"id: f\nbase: node\npackages: {npm: package.json, npm_scripts: [bcrypt]}\n", true},
		{"id: f\nbase: node\npackages: {npm: [bcrypt], npm_scripts: [bcrypt@5]}\n", false},
		{"id: f\nbase: node\npackages: {npm: [bcrypt], npm_scripts: true}\n", false},
		{"id: f\nbase: node\npackages: {npm_scripts: [bcrypt]}\n", false},
		{"id: f\nbase: ruby\npackages: {gem: [sinatra, 'rack:3.0', 'rake:>= 12, < 14', 'a-b_c.d: ~> 1.0.a']}\n", true},
		{"id: f\nbase: ruby\npackages: {gem: sub/Gemfile}\n", true},
		{"id: f\nbase: ruby\npackages: {gem: ['rack@3']}\n", false},
		{"id: f\nbase: ruby\npackages: {gem: ['rack:latest']}\n", false},
		{"id: f\nbase: ruby\npackages: {gem: ['../rack']}\n", false},
		{"id: f\nbase: python\npackages: {gem: [rack]}\n", false},
		{"id: f\nbase: python\npackages: {pip: [torch], pip_index: {torch: pytorch-cpu, Torch_Vision: pytorch-cpu}}\n", true},
		{"id: f\nbase: python\npackages: {pip: requirements.txt, pip_index: {torch: pytorch-cpu}}\n", true},
		{"id: f\nbase: python\npackages: {pip_index: {torch: pytorch-cpu}}\n", false},
		{"id: f\nbase: python\npackages: {pip: [torch], pip_index: {torch>=2: pytorch-cpu}}\n", false},
		{"id: f\nbase: python\npackages: {pip: [torch], pip_index: {torch: 'https://h.example/'}}\n", false},
		{"id: f\nbase: python\npackages: {pip: [torch], pip_index: pytorch-cpu}\n", false},
		{"id: f\nbase: node\ncode: {build: {run: make, packages: {npm: [esbuild], npm_scripts: [esbuild]}}}\n", true},
		{"id: f\nbase: node\ncode: {build: {run: make, packages: {npm_scripts: [esbuild]}}}\n", false},
		{head + "packages: {pip: [lxml==5.3.0, 'requests>=2', 'a[b,c] ~= 1.0', 'x; python_version < \"4\"', numpy], npm: [], maven: [], deb: []}\nlibs: []\n", true},
		{head + "code: {path: src/lib}\nhandler: a.b\ntenant: acme\nnetwork: none\nversion: 1.0.2\n", true},
		{head + "network: egress\n", true},
		{head + "network: host\n", true},
		{head + "network: {mode: none}\n", true},
		{head + "network: {mode: none, lend_connection: false}\n", true},
		{head + "network: {mode: none, lend_connection: true}\n", false},
		{"id: f\nbase: native\nruntime: go\nnetwork: {mode: egress, lend_connection: true}\n", true},
		{"id: f\nbase: native\nruntime: go\nnetwork: {mode: none, lend_connection: often}\n", false},
		{"id: f\nbase: native\nhandler: a\nnetwork: {mode: none, lend_connection: true}\n", false},
		{"id: f\nbase: native\nhandler: a\ninstances: {isolation: instance}\nnetwork: {mode: none, lend_connection: true}\n", true},
		{head + "network: {mode: egress, allow: [a.org, '*.a.org:443', 198.51.100.1, 198.51.100.0/24, '[2001:db8::]:1', 'fd00::/8']}\n", true},
		{head + "env: {A: 1, B: true, _c: x, D: 1.5}\n", true},
		{head + "instances: {isolation: instance, concurrency: 4, min: 1, max: 9, idle: 1m30s}\n", true},
		{head + "instances: {isolation: event}\n", true},
		{head + "instances: {fork: never}\n", true},
		{head + "instances: {fork: always}\n", false},
		{head + "resources: {memory: 4194304, cpu: 1.5, pids: 9, tmp: 64M, files: 64, timeout: 1.5h}\n", true},
		{head + "resources: {memory: 1GiB, cpu: 500m, tmp: 1.5 GiB}\n", true},
		{head + "resources: {cpu: '0.25', memory: 100KB}\n", false}, // below 4 MiB: see outOfSchema
		{head + "resources: {cpu: 2}\n", true},

		{head + "events: {retries: 0, backoff: 10ms, priority: low, max_queue: 1, results: 0s}\n", true},
		{head + "events: {retries: 101}\n", false},
		{head + "events: {priority: urgent}\n", false},
		{head + "events: {max_queue: 0}\n", false},
		{head + "events: {results: 1}\n", false},
		{head + "triggers: []\n", true},
		{head + "triggers: [{name: a, webhook: {signature: github, secret: s, paths: ['/a/*'], headers: ['X-GitHub-Event: push']}}]\n", true},
		{head + "triggers: [{name: a, webhook: {signature: none}}, {name: b, cloudevents: {types: ['a.*'], sources: [], token: t}}]\n", true},
		{head + "triggers: [{name: a, webhook: {signature: hmac, secret: s, header: X-Sig, timestamp: X-Time, tolerance: 1m}}]\n", true},
		{head + "triggers: [{name: a, cron: {schedule: '*/5 * * * mon-fri', zone: Europe/Berlin, missed: once, path: /x, body: '{}'}}]\n", true},
		{head + "triggers: [{name: a, webhook: {signature: none, key: /data/object~1id}}, {name: b, webhook: {signature: github, secret: s, key: X-GitHub-Delivery}}]\n", true},
		{head + "triggers: [{name: a, webhook: {signature: none, key: 'a b'}}]\n", false},
		{head + "triggers: [{name: a, webhook: {signature: none, key: /a~2}}]\n", false},
		{head + "triggers: [{name: a, cron: {schedule: '@daily'}}]\n", true},
		{head + "triggers: [{name: a, cron: {schedule: '@every 1s'}}]\n", false},
		{head + "triggers: [{name: a, cron: {schedule: '* * * *'}}]\n", false},
		{head + "triggers: [{name: a, cron: {schedule: '61 * * * *'}}]\n", false}, // see outOfSchema
		{head + "triggers: [{name: a, cron: {schedule: '0 0 31 2 *'}}]\n", false}, // likewise
		{head + "triggers: [{name: a, cron: {schedule: '@daily', zone: Mars/Olympus}}]\n", false},
		{head + "triggers: [{name: a, cron: {schedule: '@daily', missed: twice}}]\n", false},
		{head + "triggers: [{name: a}]\n", false},
		{head + "triggers: [{webhook: {signature: none}}]\n", false},
		{head + "triggers: [{name: a, webhook: {signature: github}}]\n", false},
		{head + "triggers: [{name: a, webhook: {signature: none, secret: s}}]\n", false},
		{head + "triggers: [{name: a, webhook: {signature: md5, secret: s}}]\n", false},
		{head + "triggers: [{name: a, webhook: {signature: none, headers: [X]}}]\n", false},
		{head + "triggers: [{name: a, webhook: {signature: none, paths: ['[']}}]\n", false}, // likewise
		{head + "triggers: [{name: a, webhook: {signature: none}, cloudevents: {}}]\n", false},
		{head + "triggers: [{name: a, webhook: {signature: none}}, {name: a, cloudevents: {}}]\n", false}, // likewise
		{head + "triggers: [{name: a, nats: {subject: 'orders.>', queue: q}}, {name: b, nats: {subject: 'a.*.c', stream: ORDERS}}]\n", true},
		{head + "triggers: [{name: a, nats: {subject: '>'}}]\n", false},
		{head + "triggers: [{name: a, nats: {subject: '*.a'}}]\n", false},
		{head + "triggers: [{name: a, nats: {subject: '$JS.API.>'}}]\n", false},
		{head + "triggers: [{name: a, nats: {subject: 'a..b'}}]\n", false},
		{head + "triggers: [{name: a, nats: {subject: a, stream: S, queue: q}}]\n", false},
		{head + "triggers: [{name: a, nats: {}}]\n", false},
		{head + "triggers: [{name: a, files: {path: 'inbox/**/*.csv'}}]\n", true},
		{head + "triggers: [{name: a, files: {path: /inbox/x}}]\n", false},
		{head + "triggers: [{name: a, files: {path: '../x'}}]\n", false}, // see outOfSchema
		{head + "triggers: [{name: a, files: {path: 'a/['}}]\n", false},  // likewise
		{head + "triggers: [{name: a, files: {}}]\n", false},
		{head + "triggers: {name: a}\n", false},
		{head + "triggers: [a]\n", false},

		{"id: f\npipeline: [a, b@3, c@latest, a]\n", true},
		{"id: f\npipeline: [a]\nversion: '2'\ntenant: t\nresources: {timeout: 5s}\naccess: open\nevents: {retries: 1}\ntriggers: [{name: a, cron: {schedule: '@daily'}}]\n", true},
		{"id: f\npipeline: [a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a]\n", true},
		{"id: f\npipeline: [a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a]\n", false},
		{"id: f\npipeline: []\n", false},
		{"id: f\npipeline: a\n", false},
		{"id: f\npipeline: [1]\n", false},
		{"id: f\npipeline: [a.red]\n", false},
		{"id: f\npipeline: ['a|b']\n", false},
		{"id: f\npipeline: [a@]\n", false},
		{"id: f\npipeline: [f@1]\n", false}, // see outOfSchema
		{"id: f\npipeline: [a]\nresources: {memory: 64MiB}\n", false},
		{"id: f\npipeline: [a]\ninstances: {max: 2}\n", false},
		{"id: f\npipeline: [a]\nenv: {A: 1}\n", false},
		{"id: f\npipeline: [a]\nsecrets: [s]\n", false},
		{"id: f\npipeline: [a]\nruntime: python\n", false},
		{head + "pipeline: [a]\n", false},

		{"base: python\n", false},
		{"id: f\n", false},
		{"[]\n", false},
		{"id: F\nbase: python\n", false},
		{"id: 12\nbase: python\n", false},
		{"id: -f\nbase: python\n", false},
		{"id: f\nbase: cobol\n", false},
		{"id: f\nbase: native\n", false},
		{"id: f\nbase: native\nhandler: a\ninstances: {isolation: instance, concurrency: 2}\n", true},
		{"id: f\nbase: native\nhandler: a\ninstances: {concurrency: 2}\n", false},
		{"id: f\nbase: native\nhandler: a\ninstances: {concurrency: 2}\n", false},
		{"id: f\nbase: node\npackages: {pip: [lxml]}\n", false},
		{head + "packages: {npm: [left-pad]}\n", false},
		{head + "packages: {composer: [a/b]}\n", false},
		{"id: f\nbase: ruby:trixie\nhandler: main.App.handle\n", true},
		{head + "runtime: ruby\n", false},
		{"id: f\nbase: php\npackages: {composer: ['a/b', 'monolog/monolog:^3 || ^4', 'x/y_z:dev-main']}\n", true},
		{"id: f\nbase: php\npackages: {composer: composer.json}\n", true},
		{"id: f\nbase: php\npackages: {composer: ['php:>=8']}\n", false},
		{"id: f\nbase: php\npackages: {composer: ['../b', 'A/b', 'a/b:']}\n", false},
		{head + "packages: {pip: [-r x]}\n", false},
		{head + "packages: {pip: ['x @ https://example.com/x.whl']}\n", false},
		{head + "packages: {pip: [./x]}\n", false},
		{head + "packages: {pip: [1]}\n", false},
		{head + "packages: {pip: requirements.txt}\n", true},
		{"id: f\nbase: node\npackages: {pip: requirements.txt}\n", false},
		{head + "packages: {pip: 'sub/pyproject.toml[web, dev]'}\n", true},
		{head + "packages: {pip: ../requirements.txt}\n", false},
		{head + "packages: {pip: 7}\n", false},
		{"id: f\nruntime: python\n", true},
		{"id: f\nruntime: go\nbase: node\n", true},
		{"id: f\nbase: node\nruntime: http\nhandler: node server.js\n", true},
		{"id: f\nbase: node\nruntime: http\nhandler: node server.js\nhttp: {listen: fd, port: 80, ready: /up?x}\n", true},
		{"id: f\nbase: node\nruntime: http\n", false},
		{"id: f\nbase: node\nruntime: http\nhandler: a\nhttp: {listen: udp}\n", false},
		{"id: f\nbase: node\nruntime: http\nhandler: a\nhttp: {port: 0}\n", false},
		{"id: f\nbase: node\nruntime: http\nhandler: a\nhttp: {ready: up}\n", false},
		{"id: f\nbase: node\nruntime: http\nhandler: a\nhttp: {ready: '/a b'}\n", false},
		{"id: f\nbase: node\nruntime: http\nhandler: a\nhttp: {host: a}\n", false},
		{head + "http: {port: 80}\n", false},
		{"id: f\nruntime: python\nbase: node\n", false},
		{"id: f\nruntime: native\nbase: node\nhandler: a\n", true},
		{"id: f\nruntime: native\nbase: node\n", false},
		{"id: f\nruntime: native\nhandler: a\n", true},
		{"id: f\nbase: native\nruntime: python\n", false},
		{"id: f\nbase: java\npackages: {maven: [a]}\n", false},
		{head + "packages: {maven: ['a:b:1']}\n", false},
		{"id: f\nbase: oci:php\nruntime: php\npackages: {composer: [a/b]}\n", true},
		{"id: f\nbase: java\npackages: {maven: ['a:b:1@bom:c']}\n", false},
		{"id: f\nbase: java\npackages: {maven: ['a:b:1:']}\n", false},
		{"id: f\nbase: java\npackages: {maven: ['a:b::']}\n", false},
		{"id: f\nbase: java\npackages: {maven: ['a:b:1:linux-x86_64', 'a:b::linux-x86_64']}\n", true},
		{"id: f\nbase: java\npackages: {maven: ['org.a_b:c-d:1.2-x', 'a:b', 'a:b:1@bom', 'a:b:[1,2)']}\n", true},
		{head + "packages: {deb: [curl, 'ghostscript=10.*', 'g++', 'xz-utils=1:2~3']}\n", true},
		{head + "packages: {deb: [a]}\n", false},
		{head + "packages: {deb: ['curl=']}\n", false},
		{head + "packages: {deb: ['curl 1']}\n", false},
		{head + "packages: {deb: curl}\n", false},
		{head + "libs: [libxml2.so.2, libfoo-1.0.so]\n", true},
		{head + "libs: [libxml2]\n", false},
		{head + "slim: false\nkeep: [usr/share/locale/de, '**/*.a']\n", true},
		{head + "slim: 'no'\n", false},
		{head + "keep: [/usr/share]\n", false},
		{head + "keep: usr/share\n", false},
		{head + "libs: [../libxml2.so]\n", false},
		{head + "packages: {cargo: []}\n", false},
		{head + "contract: fre\n", true},
		{head + "contract: lambda\n", true},
		{head + "contract: lambda\nlambda: {event: http}\ninstances: {concurrency: 4}\n", true},
		{head + "contract: lambda\nlambda: {event: all}\n", false},
		{head + "contract: lambda\nlambda: http\n", false},
		{head + "contract: lamda\n", false},
		{head + "contract: [lambda]\n", false},
		{head + "lambda: {event: http}\n", false},
		{head + "contract: asgi\nhandler: main:app\n", true},
		{head + "contract: wsgi\nlambda: {event: http}\n", false},
		{head + "contract: functions-framework\npackages: {pip: [functions-framework]}\n", true},
		{head + "contract: knative\n", true},
		{head + "contract: http\nhandler: python3 main.py\nhttp: {ready: /}\n", true},
		{head + "contract: http\n", false},
		{head + "contract: http\nruntime: python\nhandler: python3 main.py\n", false},
		{head + "contract: http\nruntime: http\nhandler: python3 main.py\n", true},
		{head + "contract: cgi\nhandler: hello.py\ninstances: {concurrency: 4}\n", true},
		{head + "contract: cgi\n", false},
		{head + "contract: cgi\nruntime: python\nhandler: a\n", false},
		{head + "contract: stdio\nhandler: a\n", true},
		{head + "contract: stdio\nhandler: a\ninstances: {isolation: instance}\n", false},
		{head + "runtime: native\ncontract: lambda\nhandler: python3 -m awslambdaric main.handler\n", true},
		{head + "runtime: native\ncontract: lambda\nhandler: a\ninstances: {concurrency: 2}\n", false},
		{head + "runtime: native\ncontract: fre\nhandler: a\ninstances: {concurrency: 2}\n", true},
		{head + "runtime: native\ncontract: fre\nhandler: a\ninstances: {isolation: event}\n", false},
		{head + "runtime: http\ncontract: fre\nhandler: a\n", false},
		{"id: f\nbase: node\ncontract: lambda\n", true},
		{"id: f\nbase: node\ncontract: asgi\n", false},
		{"id: f\nbase: node\ncontract: knative\npackages: {npm: [faas-js-runtime]}\n", true},
		{"id: f\nbase: php\ncontract: lambda\n", false},
		{"id: f\nbase: native\nruntime: go\ncontract: lambda\n", true},
		{"id: f\nbase: native\nruntime: go\ncontract: wsgi\n", false},
		{"id: f\nbase: native\nruntime: go\ncontract: knative\nnetwork: {mode: none, lend_connection: true}\n", false},
		{"id: f\nbase: oci:debian\ncontract: cgi\nhandler: a\n", true},
		{"id: f\nbase: oci:python\ncontract: asgi\n", true},
		{"id: f\nbase: oci:python\ncontract: lambda\n", false},
		{head + "packages:\n", false},
		{"id: f\nbase: node\npackages: {npm: ['a@file:../b']}\n", false},
		{"id: f\nbase: node\npackages: {npm: ['user/repo']}\n", false},
		{head + "libs: [a]\n", false},
		{head + "code: {path: /etc}\n", false},
		{head + "code: {path: ../x}\n", false},
		{head + "code: {git: {url: x}}\n", false},
		{head + "code: {git: {url: 'https://example.org/a/b.git', ref: v1.2, auth: team, submodules: true}, path: src}\n", true},
		{head + "code: {git: {url: 'git@example.org:a/b.git'}}\n", true},
		{head + "code: {git: {url: 'ssh://git@example.org:2222/a/b.git'}}\n", true},
		{head + "code: {git: {url: 'https://token@example.org/a/b.git'}}\n", false}, // see outOfSchema
		{head + "code: {git: {url: 'https://u:p@example.org/a/b.git'}}\n", false},
		{head + "code: {git: {url: 'file:///etc'}}\n", false},
		{head + "code: {git: {url: '--upload-pack=x'}}\n", false},
		{head + "code: {git: {url: 'https://example.org/$(id)'}}\n", false},
		{head + "code: {git: {url: 'https://example.org/a', ref: '--x'}}\n", false},
		{head + "code: {git: {ref: main}}\n", false},
		{head + "code: {git: {url: 'https://example.org/a', submodules: 'yes'}}\n", false},
		{head + "code: {archive: code.zip, path: src}\n", true},
		{head + "code: {build: {run: make, packages: {deb: [make], pip: [cython], npm: []}, output: out}}\n", true},
		{head + "code: {build: {output: out}}\n", false},
		{head + "code: {build: {run: make, packages: {pip: requirements.txt}}}\n", false},
		{head + "code: {build: {run: make, packages: {deb: [Make]}}}\n", false},
		{head + "code: {build: {run: make, output: ../out}}\n", false},
		{head + "code: {build: make}\n", false},
		{head + "code: {archive: ../code.zip}\n", false},
		{head + "code: {archive: code.zip, git: {url: 'https://example.org/a'}}\n", false},
		{head + "code: src\n", false},
		{head + "runtime: x\n", false},
		{head + "network: bridge\n", false},
		{head + "network: false\n", false},
		{head + "network: {allow: [a.org]}\n", false},
		{head + "network: {mode: host, allow: [a.org]}\n", false},
		{head + "network: {mode: egress, allow: []}\n", false},
		{head + "network: {mode: egress, allow: a.org}\n", false},
		{head + "network: {mode: egress, allow: ['a b']}\n", false},
		{head + "network: {mode: egress, allow: [10.0.0.1/8]}\n", false}, // see outOfSchema
		{head + "network: {mode: egress, port: 1}\n", false},
		{head + "version: 1.0\n", false},
		{head + "version: a/b\n", false},
		{head + "tenant: A\n", false},
		{head + "handler: ''\n", false},
		{head + "handlr: a.b\n", false},
		{head + "env: {FRE_X: 1}\n", false},
		{head + "env: {a-b: 1}\n", false},
		{head + "env: {A: [1]}\n", false},
		{head + "env: {A: }\n", false},
		{head + "env: []\n", false},
		{head + "instances: {isolation: never}\n", false},
		{head + "instances: {isolation: event, concurrency: 2}\n", false},
		{head + "instances: {concurrency: 0}\n", false},
		{head + "instances: {concurrency: 1.5}\n", false},
		{head + "instances: {min: -1}\n", false},
		{head + "instances: {max: 0}\n", false},
		{head + "instances: {max: 1000000}\n", false},
		{head + "instances: {idle: 5}\n", false},
		{head + "instances: {idle: 0}\n", false},
		{head + "instances: {idle: soon}\n", false},
		{head + "instances: {warm: 1}\n", false},
		{head + "resources: {memory: 1000}\n", false},
		{head + "resources: {memory: 1XiB}\n", false},
		{head + "resources: {memory: -5MiB}\n", false},
		{head + "resources: {memory: true}\n", false},
		{head + "resources: {cpu: 0.001}\n", false},
		{head + "resources: {cpu: 1.5m}\n", false},
		{head + "resources: {cpu: fast}\n", false},
		{head + "resources: {pids: 0}\n", false},
		{head + "resources: {pids: 8}\n", false}, // below concurrency + 8: see outOfSchema
		{head + "instances: {isolation: event}\nresources: {pids: 1}\n", true},
		{head + "resources: {files: 1}\n", false},
		{head + "resources: {tmp: 4096}\n", false},
		{head + "resources: {timeout: 30}\n", false},
		{head + "resources: {timeout: 30 s}\n", false},
		{head + "resources: {disk: 1}\n", false},
	} {
		t.Run(c.src, func(t *testing.T) {
			tmpl, perr := runtimes.Dialect().Parse(template.FileName, []byte(c.src))
			if perr == nil {
				perr = image.CheckTemplate(tmpl, runtimes.Bases(), runtimes.All(), runtimes.Sites())
			}
			if good := perr == nil; good != c.good {
				t.Errorf("ParseTemplate: good is %v, want %v: %v", good, c.good, perr)
			}
			if outOfSchema[c.src] {
				return
			}
			var doc any
			if err := yaml.Unmarshal([]byte(c.src), &doc); err != nil {
				t.Fatal(err)
			}
			serr := schema.Validate(doc)
			if good := serr == nil; good != c.good {
				t.Errorf("schema: good is %v, want %v: %v", good, c.good, serr)
			}
		})
	}
}

// outOfSchema are faults beyond JSON Schema: the range of a number with a unit or of a dependent
// number, an address's bits, the meaning of a schedule or a pattern, and repeated names.
var outOfSchema = map[string]bool{
	"id: f\npipeline: [f@1]\n": true,
	"id: f\nbase: python\ntriggers: [{name: a, files: {path: '../x'}}]\n":                                  true,
	"id: f\nbase: python\ntriggers: [{name: a, files: {path: 'a/['}}]\n":                                   true,
	"id: f\nbase: python\ntriggers: [{name: a, cron: {schedule: '61 * * * *'}}]\n":                         true,
	"id: f\nbase: python\ntriggers: [{name: a, cron: {schedule: '0 0 31 2 *'}}]\n":                         true,
	"id: f\nbase: python\ntriggers: [{name: a, cron: {schedule: '@daily', zone: Mars/Olympus}}]\n":         true,
	"id: f\nbase: python\ntriggers: [{name: a, webhook: {signature: none, paths: ['[']}}]\n":               true,
	"id: f\nbase: python\ntriggers: [{name: a, webhook: {signature: none}}, {name: a, cloudevents: {}}]\n": true,
	"id: f\nbase: python\ncode: {git: {url: 'https://token@example.org/a/b.git'}}\n":                       true,
	"id: f\nbase: python\nresources: {pids: 8}\n":                                                          true,
	"id: f\nbase: python\nresources: {cpu: '0.25', memory: 100KB}\n":                                       true,
	"id: f\nbase: python\nnetwork: {mode: egress, allow: [10.0.0.1/8]}\n":                                  true,
}
