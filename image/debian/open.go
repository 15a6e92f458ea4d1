package debian

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Open reads the sources. It downloads nothing: Resolve does.
func Open(cfg Config) (*Archive, error) {
	a := &Archive{
		sources: cfg.Sources,
		arch:    debianArch(),
		log:     cfg.Log,
		now:     time.Now,
		limits:  limits{deb: 1 << 30, unpacked: 2 << 30, entries: 200_000, index: 512 << 20, link: 64 << 20},
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	apt := aptConfig{}
	if cfg.Client == nil || cfg.Sources == nil {
		apt = readAptConfig(context.Background())
	}
	own, err := hostRelease(cfg.root, cfg.Sources)
	if err != nil {
		return nil, err
	}
	a.codename = cmp.Or(cfg.Release, own)
	if cfg.Sources == nil {
		if err := a.useHostSources(cfg.root, own, apt.allowExpired); err != nil {
			return nil, err
		}
	} else {
		a.sources = slices.DeleteFunc(slices.Clone(cfg.Sources), func(s Source) bool { return s.release() != a.codename })
		if len(a.sources) == 0 {
			return nil, fmt.Errorf("no apt source of the release %s: packages.debian in FRE's configuration has sources of %s only", a.codename, own)
		}
	}
	if err := makeCache(cfg.Cache); err != nil {
		return nil, err
	}
	client := cfg.Client
	if client == nil {
		client = newClient(apt)
	}
	a.fetch = fetcher{client: client, cache: cfg.Cache, idle: 60 * time.Second, backoff: time.Second}
	return a, nil
}

func makeCache(dir string) error {
	if dir == "" {
		return errors.New("cache directory not given")
	}
	for _, d := range []string{"release", "index", "deb"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return fmt.Errorf("cache: %w", err)
		}
	}
	return nil
}

// useHostSources reads the sources of the host, whose release is own. For another release the
// suites' names change.
func (a *Archive) useHostSources(root, own string, allowExpired bool) (err error) {
	if a.origin, _, err = osRelease(root + "/etc/os-release"); err != nil {
		return err
	}
	if a.sources, err = hostSources(cmp.Or(root, "/"), own, a.arch, a.log); err != nil {
		return err
	}
	for i := range a.sources {
		s := &a.sources[i]
		s.AllowExpired = s.AllowExpired || allowExpired
		if a.codename != own {
			s.Suite, a.foreign = a.codename+strings.TrimPrefix(s.Suite, own), true
		}
	}
	return nil
}

// HostRelease is the default release of base environments: the release of the first source, or, if
// sources is nil, the host's own.
func HostRelease(sources []Source) (codename string, err error) { return hostRelease("", sources) }

func hostRelease(root string, sources []Source) (codename string, err error) {
	if sources == nil {
		_, codename, err = osRelease(root + "/etc/os-release")
		return codename, err
	}
	if len(sources) == 0 {
		return "", errors.New("no apt sources given")
	}
	return sources[0].release(), nil
}

// osRelease reads ID and VERSION_CODENAME; see os-release(5).
func osRelease(path string) (id, codename string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", fmt.Errorf("os-release: %w", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		key, value, _ := strings.Cut(sc.Text(), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			codename = value
		}
	}
	if err := sc.Err(); err != nil {
		return "", "", fmt.Errorf("os-release: %w", err)
	}
	if codename == "" {
		return "", "", fmt.Errorf("%s names no VERSION_CODENAME: base environments need a Debian or Ubuntu release, or apt sources in FRE's configuration", path)
	}
	return id, codename, nil
}
