# FRE's build. `make` lists the targets: the text after ## is their help.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

# scripts/deps.sh puts a Go toolchain (or a link to one) in .cache/go when the
# one in PATH is missing or too old, so that directory comes first.
export PATH := $(CURDIR)/.cache/go/bin:$(PATH)
export GOTOOLCHAIN := local

# Programs, tests and the linter share these flags, so that a dependency compiles once (and once
# more for the race detector). With the tags, packages net and os/user are the same with and without
# cgo, and only video/ffmpeg uses cgo.
TAGS := netgo,osusergo
export GOFLAGS := $(strip $(filter-out -trimpath -tags=%,$(GOFLAGS)) -trimpath -tags=$(TAGS))

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
PREFIX   ?= /usr/local
ifeq ($(origin CC),default)
CC       := gcc
endif
export CC
CFLAGS   ?= -O2
C_STRICT := -static -Wall -Wextra -Werror
# go.work joins these modules with the root module. ./... stops at their go.mod.
MODULES  := bench function video
PKG      ?= ./... $(MODULES:%=./%/...)
FUZZTIME ?= 3s
FLAKE_ROUNDS ?= 10
FLAKE_STEPS  ?= race test-root test-builds

# Long-running suites with a target of their own; `unit` and `race` leave them out,
# test/cosign, test/openfaas, test/functionsframework and test/frameworks.
SUITES := ./test/system/... ./test/docker/... ./test/security/... ./test/robustness/... ./test/cluster/... ./video/test/...

SPAWNER_SRC := $(wildcard sandbox/spawner/*.c)
SPAWNER_BIN := sandbox/spawner/bin/fre-spawner
JAVA_SRC  := runtimes/java/native/native.c
JAVA_LIB  := runtimes/java/native/bin/libfre.so
FUNC_SRC  := $(wildcard function/*.go function/*/*.go function/*/*/*.go) function/go.mod
HTTP_BIN  := runtimes/httpserver/bin/fre-http
VIDEO_SRC := $(wildcard video/transcoder/*.go video/transcode/*.go video/ffmpeg/*.go video/media/*.go internal/linux/*.go) $(FUNC_SRC) video/go.mod video/go.sum
VIDEO_BIN := video/service/template/code/transcoder
LINTER    := .cache/tools/golangci-lint
REGISTRY  := .cache/tools/registry
CONFORM   := .cache/tools/conformance
H2SPEC    := .cache/tools/h2spec
NATS      := .cache/tools/nats
CLOUDEVENTS := .cache/tools/cloudevents
COSIGN    := .cache/tools/cosign
PEBBLE    := .cache/tools/pebble
SCRIPTS   := $(wildcard scripts/*.sh test/v2/*.sh) test/v2/init .ci/run

# Tests that build base environments and packages from the network: minutes
# under the race detector, so test-builds runs them without it.
BUILDS := ^(TestBuild(Gems|Python|PythonFiles|Source|Node|NodeScripts|Java|Go|Debian|Foreign[A-Za-z]*|Web[A-Za-z]*|Maven[A-Za-z]*)|TestCodeFrom[A-Za-z]*|TestComposer|TestIndex[A-Za-z]*|TestBasesRun)$$

# A program of the race detector takes ten times as long to start, so the scripts of the command
# lines run without it.
SCRIPTED := ^TestScripts$$

# SQLite is C translated to Go, with locks of its own: checking it took most of the time of every
# test that opens a store.
RACE := -race -gcflags=modernc.org/...=-race=false

# Each benchmark once and with little data, to see that it runs.
ONCE := -short -bench . -benchtime 1x

# Packages under PKG without the suites, as directories.
unit_packages = $$(go list -f '{{.Dir}}' $(PKG) | grep -vE '/test/(system|docker|security|robustness|cluster|cosign|openfaas|functionsframework|frameworks)(/|$$)|/video/test(/|$$)')

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z0-9-]*:.* ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.* ## /\1\t/' | expand -t 16

##### build

.PHONY: build
build: deps-build deps-video embedded ## build bin/fre, bin/fre-video and bin/fre-bench (installs a compiler and Go first if they are missing)
	CGO_ENABLED=0 go build -ldflags '-s -w -X main.release=$(VERSION)' -o bin/ ./cmd/... ./video/cmd/... ./bench/cmd/...

.PHONY: embedded
embedded: $(SPAWNER_BIN) $(JAVA_LIB) $(HTTP_BIN) $(VIDEO_BIN) ## build what the programs carry: the C spawner, the Java bootstrap's library, the adapter of HTTP servers, the transcoder

$(SPAWNER_BIN): $(SPAWNER_SRC) $(wildcard sandbox/spawner/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(C_STRICT) -o $@.tmp $(SPAWNER_SRC)
	@mv $@.tmp $@

$(JAVA_LIB): $(JAVA_SRC)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -shared -fPIC -nostdlib -s -Wall -Wextra -Werror -o $@.tmp $<
	@mv $@.tmp $@

# With cgo, against the machine's FFmpeg: those of its libraries that the transcoder's
# image has come from the same release of Debian.
$(VIDEO_BIN): $(VIDEO_SRC) | deps-build deps-video
	CGO_ENABLED=1 go build -buildvcs=false -ldflags '-s -w' -o $@ ./video/transcoder
	@touch $@

$(HTTP_BIN): $(FUNC_SRC) go.mod go.sum | deps-build
	CGO_ENABLED=0 go build -buildvcs=false -ldflags '-s -w -buildid=' -o $@ ./function/adapter/fre-http
	@touch $@

.PHONY: install
install: build ## install bin/fre, bin/fre-video and bin/fre-bench into PREFIX/bin (/usr/local)
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin bin/fre bin/fre-video bin/fre-bench

.PHONY: install-fre
install-fre: deps-build $(SPAWNER_BIN) $(JAVA_LIB) $(HTTP_BIN) ## build and install bin/fre alone, without the libraries of video
	CGO_ENABLED=0 go build -ldflags '-s -w -X main.release=$(VERSION)' -o bin/ ./cmd/fre
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin bin/fre

.PHONY: clean
clean: ## remove what was built; keeps .cache (downloads, tools)
	rm -rf bin $(SPAWNER_BIN) $(JAVA_LIB) $(HTTP_BIN) $(VIDEO_BIN)

.PHONY: deps
deps: ## install by apt everything that any target needs
	@scripts/deps.sh build video run test v2 bench

.PHONY: deps-build deps-video deps-run deps-test deps-v2 deps-bench deps-tutorial
deps-build deps-video deps-run deps-test deps-v2 deps-bench deps-tutorial:
	@scripts/deps.sh $(@:deps-%=%)

##### test

.PHONY: test
test: ## run everything, as root: lint, unit and root tests, robustness, docs, cgroup-v2 kernel, benchmarks once
	@if [ "$$(id -u)" != 0 ]; then echo "make test starts sandboxes: run it as root (make lint unit needs no root)" >&2; exit 1; fi
	@scripts/steps.sh deps build tools -j 3 test-root lint race test-builds bench-smoke test-v2-core docs

.PHONY: tools
tools: $(LINTER) $(REGISTRY) $(CONFORM) $(H2SPEC) $(PEBBLE) $(NATS) $(CLOUDEVENTS) ## build the other programs of make test: linter, registry, NATS, conformance tools

.PHONY: fmt
fmt: $(LINTER) ## format the Go code
	$(LINTER) fmt

.PHONY: lint
lint: deps-test embedded $(LINTER) ## golangci-lint (go vet and import rules included), a build without adapters, vague words, shellcheck
	go build -tags $(TAGS),nodocker,nolambda,noopenfaas ./daemon
	for m in . $(MODULES); do (cd $$m && GOWORK=off go list -deps -test ./... >/dev/null); done # each go.mod requires all that its module imports
	# The files that cgo makes name their checkout. With -trimpath the build cache would give them to another one: -I keeps these files apart, and everything else shared.
	GOWORK=$(CURDIR)/tools/lint/go.work CGO_CPPFLAGS="-I$(CURDIR)" $(LINTER) run $(PKG)
	scripts/lint-proof.sh $(LINTER)
	go run ./scripts/prose
	shellcheck $(SCRIPTS)

# Each tool has a go.mod below tools/: its dependencies are none of FRE's. go.work does not
# list these modules.
$(LINTER) $(REGISTRY) $(CONFORM) $(H2SPEC) $(PEBBLE) $(NATS) $(CLOUDEVENTS) $(COSIGN): export GOWORK := off

$(LINTER): tools/go.mod tools/go.sum | deps-build
	go build -modfile=tools/go.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

# The registry that image/oci is tested against.
$(REGISTRY): tools/registry/main.go tools/registry/go.mod tools/registry/go.sum | deps-build
	CGO_ENABLED=0 go -C tools/registry build -ldflags '-s -w' -o $(CURDIR)/$@ .
	@touch $@

# The suite that registry is tested against: the distribution-spec's own.
$(CONFORM): tools/conformance/go.mod tools/conformance/go.sum | deps-build
	CGO_ENABLED=0 go build -modfile=tools/conformance/go.mod -ldflags '-s -w' -o $@ github.com/opencontainers/distribution-spec/conformance
	@touch $@

# The suite that httpserver's HTTP/2 is tested against.
$(H2SPEC): tools/h2spec/go.mod tools/h2spec/go.sum | deps-build
	CGO_ENABLED=0 go build -modfile=tools/h2spec/go.mod -ldflags '-s -w' -o $@ github.com/summerwind/h2spec/cmd/h2spec
	@touch $@

# The ACME server that the gateway's certificates are tested with.
$(PEBBLE): tools/pebble/go.mod tools/pebble/go.sum | deps-build
	CGO_ENABLED=0 go build -modfile=tools/pebble/go.mod -ldflags '-s -w' -o $@ github.com/letsencrypt/pebble/v2/cmd/pebble
	@touch $@

# The command line that events' streams are read with.
$(NATS): tools/nats/go.mod tools/nats/go.sum | deps-build
	CGO_ENABLED=0 go build -modfile=tools/nats/go.mod -ldflags '-s -w' -o $@ github.com/nats-io/natscli/nats
	@touch $@

# The tool that hooks for CloudEvents are tested with: CloudEvents' own.
$(CLOUDEVENTS): tools/cloudevents/go.mod tools/cloudevents/go.sum | deps-build
	CGO_ENABLED=0 go build -modfile=tools/cloudevents/go.mod -ldflags '-s -w' -o $@ github.com/cloudevents/conformance/cmd/cloudevents
	@touch $@

# The peer of image/signature.
$(COSIGN): tools/cosign/go.mod tools/cosign/go.sum | deps-build
	CGO_ENABLED=0 go build -modfile=tools/cosign/go.mod -ldflags '-s -w' -o $@ github.com/sigstore/cosign/v3/cmd/cosign
	@touch $@

.PHONY: docs
docs: deps-build ## check links, commands, targets and tests that the documents name, the table of promises, and the examples of docs/deploy
	go test -count=1 ./test/docs/...
	cd tools/deploy && GOWORK=off go test -count=1 ./...

.PHONY: unit
unit: deps-build embedded $(REGISTRY) $(CONFORM) $(H2SPEC) $(NATS) ## go test without the long suites; what needs root is skipped without it
	go test $(unit_packages)

.PHONY: race
race: deps-test embedded $(REGISTRY) $(CONFORM) $(H2SPEC) $(NATS) ## the same, packages with goroutines or locks under the race detector, and each benchmark once; as root nothing may be skipped
	if [ "$$(id -u)" = 0 ]; then export FRE_TEST_ROOT=1; fi; status=0; packages=$(unit_packages); \
	go test $(RACE) $(ONCE) -vet=off -timeout 30m -skip '$(BUILDS)|$(SCRIPTED)' $$(scripts/concurrent.sh <<<"$$packages") || status=1; \
	go test $(ONCE) -vet=off -timeout 30m -skip '$(BUILDS)' $$(scripts/concurrent.sh -v <<<"$$packages") || status=1; \
	go test -vet=off -timeout 30m -run '$(SCRIPTED)' ./cmd/... ./video/cmd/... ./bench/cmd/... || status=1; \
	exit $$status

.PHONY: test-root
test-root: deps-test deps-run build $(REGISTRY) $(PEBBLE) $(NATS) $(CLOUDEVENTS) ## system, docker, security and robustness suites: the whole path, as root
	FRE_TEST_ROOT=1 FRE_BIN=$(CURDIR)/bin/fre go test -vet=off -count=1 -p 1 -timeout 40m $(SUITES)

.PHONY: test-builds
test-builds: deps-test deps-run build ## as root: build base environments and packages of each language from the network
	state=$$(mktemp -d /var/tmp/fre-builds.XXXXXX); trap 'rm -rf "$$state"' EXIT; \
	FRE_TEST_ROOT=1 FRE_TEST_STATE=$$state FRE_TEST_CACHE=$$state/debian go test -vet=off -count=1 -timeout 40m -run '$(BUILDS)' ./runtimes

.PHONY: test-cosign
test-cosign: deps-build $(REGISTRY) $(COSIGN) ## cosign and FRE verify what the other signs; cosign is large to build, so not part of make test
	go test -count=1 ./test/cosign $(TESTFLAGS)

.PHONY: test-frameworks
test-frameworks: deps-build build ## as root: functions of the ten most used frameworks of each language; not part of make test, because of what it downloads
	FRE_TEST_ROOT=1 FRE_BIN=$(CURDIR)/bin/fre go test -count=1 -timeout 60m ./test/frameworks $(TESTFLAGS)

.PHONY: test-openfaas
test-openfaas: deps-build build ## as root: the commands of the faas-cli that FRE_FAAS_CLI names; not part of make test, which cannot get it
	FRE_TEST_ROOT=1 FRE_BIN=$(CURDIR)/bin/fre go test -count=1 ./test/openfaas $(TESTFLAGS)

.PHONY: test-functions-framework
test-functions-framework: deps-build build ## as root: the Functions Framework's conformance client that FRE_FUNCTIONS_FRAMEWORK_CLIENT names; not part of make test, which cannot get it
	FRE_TEST_ROOT=1 FRE_BIN=$(CURDIR)/bin/fre go test -count=1 ./test/functionsframework $(TESTFLAGS)

.PHONY: test-tutorial
test-tutorial: deps-tutorial ## as root, some fifteen minutes: the tutorial's commands in a minimal Debian with systemd; not part of make test, because the system builds FRE from nothing
	scripts/tutorial.sh

.PHONY: test-v2
test-v2: deps-v2 build ## root tests on a kernel with cgroup v2 only, under qemu
	test/v2/run.sh

# Emulation is ten times slower, so make test runs only these.
.PHONY: test-v2-core
test-v2-core: deps-v2 build ## the tests of test-v2 that depend on the version of cgroups
	test/v2/run.sh test/v2 internal/linux sandbox/cgroup \
		'sandbox Run Namespaces Limits KillReachesAll Signal ManyAtOnce SpawnerKilled ScratchLimits ForkBombGivesWay ParkedLimits Ceilings ProcFiles' \
		'engine WarmReuse FreshPerEvent Run WorkLimit Stop' \
		'test/security Bombs KernelMemory ProcFiles ContainerSees'

.PHONY: test-v2-system
test-v2-system: deps-v2 build ## the whole path on that kernel, from a prepared state: many minutes under emulation
	test/v2/run.sh test/v2 test/system

.PHONY: fuzz
fuzz: deps-build ## search with each Fuzz target for FUZZTIME (3s); make test replays the corpora
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: flake
flake: ## as root, for hours: the gate's tests FLAKE_ROUNDS (10) times, half of them beside two busy loops per CPU; lists the tests that failed
	scripts/flake.sh $(FLAKE_ROUNDS) $(FLAKE_STEPS)

.PHONY: soak
soak: soak-store soak-engine ## both soaks

.PHONY: soak-engine
soak-engine: deps-test deps-run build ## as root: an hour of mixed load and misbehaviour on an engine, which is to leak nothing; FRE_SOAK=10m for less
	FRE_SOAK=$${FRE_SOAK:-1h} FRE_SOAK_TEMPLATES="$${FRE_SOAK_TEMPLATES-python-hello node-hello php-hello ruby-hello java-hello go-hello}" \
		FRE_TEST_ROOT=1 FRE_BIN=$(CURDIR)/bin/fre go test -count=1 -v -timeout 24h ./test/robustness -run '^TestSoak$$'

.PHONY: soak-store
soak-store: deps-build ## a store of 10,000 images with 1,000 files each: 10 million links, a million inodes, 3 GB below TMPDIR
	FRE_TEST_IMAGES=10000 go test -count=1 -v -timeout 4h ./store -run '^TestScale$$'

##### look

.PHONY: demo
demo: deps-run build ## as root: build, deploy and call functions of templates/, leaving nothing
	scripts/demo.sh

.PHONY: bench-smoke
bench-smoke: deps-test build ## each benchmark program once, quickly, to see that it runs
	state=$$(mktemp -d /var/tmp/fre-bench-smoke.XXXXXX); trap 'rm -rf "$$state"' EXIT; \
	for b in start warm data event events calls paper build; do go run ./bench/$$b -quick -results .cache/bench-smoke -state "$$state/state"; done; \
	for b in video tenants nodes list; do go run ./bench/$$b -quick -results .cache/bench-smoke; done

.PHONY: bench-start
bench-start: deps-bench build ## cold starts beside vfork+exec, runc and docker
	go run ./bench/start $(BENCHFLAGS)

.PHONY: bench-warm
bench-warm: deps-bench build ## warm calls of no-op handlers: p50, p99, requests/s
	go run ./bench/warm $(BENCHFLAGS)

.PHONY: bench-tenants
bench-tenants: deps-bench build ## a tenant's latency beside one that sends ten times its quota
	go run ./bench/tenants $(BENCHFLAGS)

.PHONY: bench-nodes
bench-nodes: deps-bench build ## three nodes beside one with the same part of a CPU each: events/s, calls/s; on a machine with cgroup v1
	go run ./bench/nodes $(BENCHFLAGS)

.PHONY: bench-data
bench-data: deps-bench build ## the data path beside nginx, httputil.ReverseProxy and net/http; writes bench/docs/data.md
	go run ./bench/data -summary bench/docs/data.md $(BENCHFLAGS)

.PHONY: bench-video
bench-video: deps-bench build ## the video origin beside nginx, nginx-vod-module (FRE_BENCH_NGINX_VOD) and the plain ways of net/http; writes bench/docs/video.md
	go run ./bench/video -summary bench/docs/video.md $(BENCHFLAGS)

.PHONY: bench-event
bench-event: deps-bench build ## fresh sandboxes per event: first line of a handler, events/s, memory of what is kept ready
	go run ./bench/event $(BENCHFLAGS)

.PHONY: bench-events
bench-events: deps-bench build ## asynchronous events: events/s to a warm no-op, how long an acknowledgement takes
	go run ./bench/events $(BENCHFLAGS)

.PHONY: bench-calls
bench-calls: deps-bench build ## a function's call of another one, beside the same by the gateway
	go run ./bench/calls $(BENCHFLAGS)

.PHONY: bench-paper
bench-paper: deps-bench build ## the figures of the paper, beside docker, runc and bare processes; writes bench/docs/paper.md
	go run ./bench/paper $(BENCHFLAGS)

.PHONY: bench-list
bench-list: deps-bench build ## lists of images and sandboxes, sizes, the start with 10,000 images, beside docker
	go run ./bench/list $(BENCHFLAGS)

.PHONY: bench-image
bench-image: deps-bench build ## sizes of images beside Docker's of the same functions
	go run ./bench/image $(BENCHFLAGS)

.PHONY: bench-build
bench-build: deps-bench build ## packages beside uv, pip, pnpm and Maven; second images, redeploys, imports
	go run ./bench/build $(BENCHFLAGS)

.PHONY: bench-docs
bench-docs: deps-bench build ## on a quiet machine, some twenty minutes: all of these but warm calls, written to bench/docs
	go run ./bench/start -summary bench/docs/start.md $(BENCHFLAGS)
	go run ./bench/event -summary bench/docs/event.md $(BENCHFLAGS)
	go run ./bench/data -summary bench/docs/data.md $(BENCHFLAGS)
	go run ./bench/video -summary bench/docs/video.md $(BENCHFLAGS)
	go run ./bench/list -summary bench/docs/list.md $(BENCHFLAGS)
	go run ./bench/image -summary bench/docs/image.md $(BENCHFLAGS)
	go run ./bench/build -summary bench/docs/build.md $(BENCHFLAGS)
	go run ./bench/paper $(BENCHFLAGS)
