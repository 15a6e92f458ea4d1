package node

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
)

// site is a registry seen from one build.
type site struct {
	step             *image.Step
	tools, compilers []string // Debian packages
	patience         time.Duration
	allowed          []string // names of packages whose scripts run
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
