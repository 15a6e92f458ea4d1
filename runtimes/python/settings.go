package python

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

// Config is FRE's own configuration of pip. It implements image.ToolConfig.
type Config struct {
	Index        string   `yaml:"index"`         // URL
	ExtraIndexes []string `yaml:"extra_indexes"` // URLs
	TrustedHosts []string `yaml:"trusted_hosts"` // host or host:port without TLS checks

	Indexes map[string]string `yaml:"indexes"` // name in packages.pip_index → URL
}

// Read reads pip's environment and files (pip's manual, "Configuration") and uv's environment.
func (c Config) Read(h image.Host, s *image.Settings) (certificates []string, err error) {
	pip, err := configured(h)
	if err != nil {
		return nil, err
	}
	if err := checkIndexes(c.Indexes); err != nil {
		return nil, err
	}
	index := image.FirstSet(c.Index, pip["index-url"])
	extra := words(c.ExtraIndexes, pip["extra-index-url"])
	trusted := words(c.TrustedHosts, pip["trusted-host"])
	uv := func(own string, override bool, fromPip string) string {
		if override {
			return fromPip
		}
		return image.FirstSet(h.Getenv(own), fromPip)
	}
	var env []string
	image.AddVariable(&env, "PIP_INDEX_URL", index)
	image.AddVariable(&env, "UV_DEFAULT_INDEX", uv("UV_DEFAULT_INDEX", c.Index != "", index))
	image.AddVariable(&env, "PIP_EXTRA_INDEX_URL", extra)
	image.AddVariable(&env, "UV_INDEX", uv("UV_INDEX", c.ExtraIndexes != nil, extra))
	image.AddVariable(&env, "PIP_TRUSTED_HOST", trusted)
	image.AddVariable(&env, "UV_INSECURE_HOST", uv("UV_INSECURE_HOST", c.TrustedHosts != nil, trusted))
	if links := pip["find-links"]; strings.Contains(links, "://") { // directories of the host do not exist in a build's sandbox
		image.AddVariable(&env, "PIP_FIND_LINKS", links)
		image.AddVariable(&env, "UV_FIND_LINKS", links)
	}
	*s = s.With(install.PipSettings{Env: env, Indexes: c.Indexes})
	return []string{pip["cert"], h.Getenv("REQUESTS_CA_BUNDLE"), h.Getenv("CURL_CA_BUNDLE")}, nil
}

// checkIndexes returns an error for a faulty package index.
func checkIndexes(indexes map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(indexes)) {
		if !template.ValidName(name) {
			return fmt.Errorf("packages.pip.indexes: bad name %q: lower-case letters, digits and dashes, at most 63", name)
		}
		// A URL may hold a password, so the error does not repeat it.
		if u, err := url.Parse(indexes[name]); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return fmt.Errorf("packages.pip.indexes.%s: want the URL of a package index, like https://HOST/PATH", name)
		}
	}
	return nil
}

func words(over []string, value string) string {
	if over != nil {
		return strings.Join(over, " ")
	}
	return strings.Join(strings.Fields(value), " ")
}

// configured merges pip's files, later files winning, below pip's environment.
func configured(h image.Host) (map[string]string, error) {
	var files []string
	for _, dir := range filepath.SplitList(image.FirstSet(h.Getenv("XDG_CONFIG_DIRS"), "/etc/xdg")) {
		files = append(files, h.Root+filepath.Join(dir, "pip/pip.conf"))
	}
	files = append(files, h.Root+"/etc/pip.conf")
	if h.Home != "" {
		files = append(files, filepath.Join(h.Home, ".pip/pip.conf"))
		config := h.ConfigHome()
		files = append(files, filepath.Join(config, "pip/pip.conf"))
	}
	switch own := h.Getenv("PIP_CONFIG_FILE"); own {
	case "":
	case os.DevNull:
		files = nil
	default:
		files = append(files, own)
	}
	values := map[string]string{}
	for _, section := range []string{"global", "install"} { // install's section wins
		for _, file := range files {
			list, err := install.ReadINI(file)
			if err != nil {
				return nil, err
			}
			for _, v := range list {
				if v.Section == section {
					values[strings.ReplaceAll(v.Key, "_", "-")] = v.Value
				}
			}
		}
	}
	for _, key := range []string{"index-url", "extra-index-url", "trusted-host", "cert", "find-links"} {
		if v := h.Getenv("PIP_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))); v != "" {
			values[key] = v
		}
	}
	return values, nil
}
