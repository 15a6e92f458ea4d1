package image

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/fre-engine/fre/template"
)

// SettingsOverride is FRE's own configuration of package tools. A set field replaces the host's
// configuration.
type SettingsOverride struct {
	Pip struct {
		Index        string   `yaml:"index"`         // URL
		ExtraIndexes []string `yaml:"extra_indexes"` // URLs
		TrustedHosts []string `yaml:"trusted_hosts"` // host or host:port without TLS checks

		Indexes map[string]string `yaml:"indexes"` // name in packages.pip_index → URL
	} `yaml:"pip"`
	NPM struct {
		Registry string `yaml:"registry"` // URL
		Config   string `yaml:"config"`   // path of an npmrc
	} `yaml:"npm"`
	Gem struct {
		Sources []string `yaml:"sources"` // URLs
	} `yaml:"gem"`
	Composer struct {
		Home string `yaml:"home"` // directory of config.json and auth.json
	} `yaml:"composer"`
	Git []GitCredential `yaml:"git"`
	Go  struct {
		Proxy   string `yaml:"proxy"`   // GOPROXY
		Private string `yaml:"private"` // GOPRIVATE
		SumDB   string `yaml:"sumdb"`   // GOSUMDB
	} `yaml:"go"`
	Maven struct {
		Settings string `yaml:"settings"` // path of a settings.xml
	} `yaml:"maven"`
	CACerts string `yaml:"ca_certs"` // path of a PEM bundle
	Proxy   struct {
		HTTP  string `yaml:"http"`
		HTTPS string `yaml:"https"`
		None  string `yaml:"none"` // hosts reached directly, comma-separated
	} `yaml:"proxy"`
}

// GitCredential gives the templates that name it access to the repositories below a URL. A token is
// read on each use, so it can change at any time.
type GitCredential struct {
	Name      string `yaml:"name"`       // for code.git.auth
	URL       string `yaml:"url"`        // https://HOST/PATH or ssh://HOST/PATH, in whole path elements
	Username  string `yaml:"username"`   // used with a token; default "git"
	TokenFile string `yaml:"token_file"` // exactly one of TokenFile, TokenEnv, SSHKey
	TokenEnv  string `yaml:"token_env"`  // a variable in the engine's environment
	SSHKey    string `yaml:"ssh_key"`    // path of a private key without a passphrase
	// KnownHosts is the path of a known_hosts file for ssh; default: the files of the engine's user
	// and of the host.
	KnownHosts string `yaml:"known_hosts"`
}

// check returns an error for a faulty credential.
func (c *GitCredential) check() error {
	u, err := url.Parse(c.URL)
	ssh := c.SSHKey != ""
	ways := 0
	for _, v := range []string{c.TokenFile, c.TokenEnv, c.SSHKey} {
		if v != "" {
			ways++
		}
	}
	switch {
	case !template.ValidName(c.Name):
		return fmt.Errorf("bad name %q: lower-case letters, digits and dashes, at most 63", c.Name)
	case err != nil || u.Host == "" || u.User != nil || ssh != (u.Scheme == "ssh") || !ssh && u.Scheme != "https" && !loopback(u):
		return fmt.Errorf("%s: url must be like https://HOST/PATH for a token, ssh://HOST/PATH for a key, without a user", c.Name)
	case ways != 1:
		return fmt.Errorf("%s: write token_file, token_env or ssh_key", c.Name)
	}
	return nil
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

// loopback reports whether u is http on a loopback address, where TLS is not needed.
func loopback(u *url.URL) bool {
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && err == nil && ip.IsLoopback()
}

// Host is where [HostSettings] looks. The zero value is an empty host; see [ThisHost].
type Host struct {
	Getenv func(string) string
	Root   string // prefix of /etc, "" for the real one
	Home   string // home directory, "" for none
}

// ThisHost returns the machine and user of the process.
func ThisHost() Host {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // a daemon may have no home, and so no user configuration
	}
	return Host{Getenv: os.Getenv, Home: home}
}

// HostSettings reads the host's configuration of package tools, proxies and certificates. Unset
// values stay unset, so that the tools' own defaults apply: FRE knows no host names.
//
// It reads pip's environment and files (pip's manual, "Configuration"), uv's environment, npm's
// npmrc files and environment (npmrc(5)), the configuration of RubyGems, Composer and Maven, Go's
// environment and the file of go env -w, SSL_CERT_FILE and the system's bundle, and http_proxy,
// https_proxy, no_proxy in both cases.
func HostSettings(h Host, over SettingsOverride) (Settings, error) {
	if h.Getenv == nil {
		h.Getenv = func(string) string { return "" }
	}
	pip, err := h.pip()
	if err != nil {
		return Settings{}, err
	}
	s := Settings{Git: over.Git}
	for i := range over.Git {
		if err := over.Git[i].check(); err != nil {
			return Settings{}, fmt.Errorf("packages.git[%d]: %w", i, err)
		}
	}
	if s.PipIndexes = over.Pip.Indexes; len(s.PipIndexes) > 0 {
		if err := checkIndexes(s.PipIndexes); err != nil {
			return Settings{}, err
		}
	}
	index := first(over.Pip.Index, pip["index-url"])
	extra := words(over.Pip.ExtraIndexes, pip["extra-index-url"])
	trusted := words(over.Pip.TrustedHosts, pip["trusted-host"])
	links := pip["find-links"]
	set := func(list *[]string, value string, names ...string) {
		for _, name := range names {
			if value != "" {
				*list = append(*list, name+"="+value)
			}
		}
	}
	uv := func(own string, override bool, fromPip string) string {
		if override {
			return fromPip
		}
		return first(h.Getenv(own), fromPip)
	}
	set(&s.PipEnv, index, "PIP_INDEX_URL")
	set(&s.PipEnv, uv("UV_DEFAULT_INDEX", over.Pip.Index != "", index), "UV_DEFAULT_INDEX")
	set(&s.PipEnv, extra, "PIP_EXTRA_INDEX_URL")
	set(&s.PipEnv, uv("UV_INDEX", over.Pip.ExtraIndexes != nil, extra), "UV_INDEX")
	set(&s.PipEnv, trusted, "PIP_TRUSTED_HOST")
	set(&s.PipEnv, uv("UV_INSECURE_HOST", over.Pip.TrustedHosts != nil, trusted), "UV_INSECURE_HOST")
	if strings.Contains(links, "://") { // directories of the host do not exist in a build's sandbox
		set(&s.PipEnv, links, "PIP_FIND_LINKS", "UV_FIND_LINKS")
	}

	for _, p := range []struct{ name, value string }{
		{"http_proxy", over.Proxy.HTTP},
		{"https_proxy", over.Proxy.HTTPS},
		{"no_proxy", over.Proxy.None},
		{"all_proxy", ""},
	} {
		set(&s.Env, first(p.value, h.Getenv(p.name), h.Getenv(strings.ToUpper(p.name))), p.name, strings.ToUpper(p.name))
	}

	npm, err := h.npm(over.NPM.Config)
	if err != nil {
		return Settings{}, err
	}
	s.NpmRC = npm.file
	if s.GemSources = over.Gem.Sources; len(s.GemSources) == 0 {
		if s.GemSources, err = h.gemSources(); err != nil {
			return Settings{}, err
		}
	}
	s.ComposerHome = h.composer(over.Composer.Home)
	set(&s.ComposerEnv, h.Getenv("COMPOSER_AUTH"), "COMPOSER_AUTH")
	set(&s.Env, first(over.NPM.Registry, npm.env["registry"]), "npm_config_registry")
	for _, key := range []string{"proxy", "https-proxy", "noproxy", "strict-ssl"} {
		set(&s.Env, npm.env[key], "npm_config_"+strings.ReplaceAll(key, "-", "_"))
	}

	if s.GoEnv, err = h.goEnv(map[string]string{"GOPROXY": over.Go.Proxy, "GOPRIVATE": over.Go.Private, "GOSUMDB": over.Go.SumDB}); err != nil {
		return Settings{}, err
	}

	if s.Netrc = h.Getenv("NETRC"); s.Netrc == "" && h.Home != "" {
		s.Netrc = filepath.Join(h.Home, ".netrc")
	}
	if _, err := os.Stat(s.Netrc); err != nil {
		s.Netrc = ""
	}

	s.MavenSettings, s.MavenGlobal = h.maven(over.Maven.Settings)

	if s.CACerts, err = h.bundle(over.CACerts, pip["cert"], npm.cafile); err != nil {
		return Settings{}, err
	}
	return s, nil
}

func first(values ...string) string {
	for _, v := range values {
		if v = strings.TrimSpace(v); v != "" {
			return v
		}
	}
	return ""
}

func words(over []string, value string) string {
	if over != nil {
		return strings.Join(over, " ")
	}
	return strings.Join(strings.Fields(value), " ")
}

// pip merges pip's files, later files winning, below pip's environment.
func (h Host) pip() (map[string]string, error) {
	var files []string
	for _, dir := range filepath.SplitList(first(h.Getenv("XDG_CONFIG_DIRS"), "/etc/xdg")) {
		files = append(files, h.Root+filepath.Join(dir, "pip/pip.conf"))
	}
	files = append(files, h.Root+"/etc/pip.conf")
	if h.Home != "" {
		files = append(files, filepath.Join(h.Home, ".pip/pip.conf"))
		config := first(h.Getenv("XDG_CONFIG_HOME"), filepath.Join(h.Home, ".config"))
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
			list, err := readINI(file)
			if err != nil {
				return nil, err
			}
			for _, v := range list {
				if v.section == section {
					values[strings.ReplaceAll(v.key, "_", "-")] = v.value
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

type npmSettings struct {
	file   string            // the user's npmrc, otherwise the host's
	env    map[string]string // values that must come by environment
	cafile string
}

// npm chooses the npmrc to bind. Only one can be bound, so plain keys of the rest become
// environment, which npm ranks above every file.
func (h Host) npm(override string) (npmSettings, error) {
	s := npmSettings{env: map[string]string{}}
	files := []string{override} // best first
	if override == "" {
		files = []string{h.setting("NPM_CONFIG_USERCONFIG")}
		if files[0] == "" && h.Home != "" {
			files[0] = filepath.Join(h.Home, ".npmrc")
		}
		if global := h.setting("NPM_CONFIG_GLOBALCONFIG"); global != "" {
			files = append(files, global)
		} else {
			files = append(files, h.Root+"/usr/local/etc/npmrc", h.Root+"/etc/npmrc", h.Root+"/usr/etc/npmrc")
		}
	} else if _, err := os.Stat(override); err != nil {
		return s, fmt.Errorf("npm configuration: %w", err)
	}
	own := map[string]bool{} // keys in the bound file
	for _, file := range files {
		if file == "" {
			continue
		}
		list, err := readINI(file)
		if err != nil {
			return s, err
		}
		if len(list) == 0 {
			continue
		}
		bound := s.file == ""
		if bound {
			s.file = file
		}
		for _, v := range list {
			if v.section != "" {
				continue
			}
			if v.key == "cafile" && s.cafile == "" {
				s.cafile = v.value
			}
			switch _, set := s.env[v.key]; {
			case bound:
				own[v.key] = true
			case !own[v.key] && !set:
				s.env[v.key] = v.value
			}
		}
	}
	if override == "" {
		for _, key := range []string{"registry", "proxy", "https-proxy", "noproxy", "strict-ssl"} {
			if v := h.setting("NPM_CONFIG_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))); v != "" {
				s.env[key] = v
			}
		}
		s.cafile = first(h.setting("NPM_CONFIG_CAFILE"), s.cafile)
	}
	return s, nil
}

// gemSources reads RubyGems' configuration (gem help environment): the host's gemrc, the user's,
// and the files in GEMRC. The last file with sources wins.
func (h Host) gemSources() ([]string, error) {
	files := []string{h.Root + "/etc/gemrc"}
	if h.Home != "" {
		config := first(h.Getenv("XDG_CONFIG_HOME"), filepath.Join(h.Home, ".config"))
		files = append(files, filepath.Join(config, "gem/gemrc"), filepath.Join(h.Home, ".gemrc"))
	}
	files = append(files, strings.FieldsFunc(h.Getenv("GEMRC"), func(r rune) bool { return r == ':' || r == ';' })...)
	var sources []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // missing, or unreadable
		}
		var rc map[string]any
		if err := yaml.Unmarshal(text, &rc); err != nil {
			return nil, fmt.Errorf("RubyGems' configuration %s: not YAML", file)
		}
		list, ok := rc[":sources"].([]any)
		if !ok {
			list, _ = rc["sources"].([]any)
		}
		var own []string
		for _, v := range list {
			if address, ok := v.(string); ok {
				own = append(own, address)
			}
		}
		if len(own) > 0 {
			sources = own
		}
	}
	return sources, nil
}

// goVariables say where Go modules come from and how they are verified
// (go.dev/ref/mod#environment-variables).
var goVariables = []string{"GOPROXY", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOSUMDB", "GOINSECURE"}

// goEnv takes each variable from FRE's configuration, the environment, or the file of go env -w.
func (h Host) goEnv(over map[string]string) ([]string, error) {
	file := h.Getenv("GOENV")
	if config := first(h.Getenv("XDG_CONFIG_HOME"), filepath.Join(h.Home, ".config")); file == "" && h.Home != "" {
		file = filepath.Join(config, "go/env")
	}
	values := map[string]string{}
	if file != "" && file != "off" {
		list, err := readINI(file)
		if err != nil {
			return nil, err
		}
		for _, v := range list {
			values[v.key] = v.value
		}
	}
	var env []string
	for _, name := range goVariables {
		if v := first(over[name], h.Getenv(name), values[name]); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env, nil
}

// maven finds Maven's settings (maven.apache.org/settings.html). A file named in FRE's
// configuration is used even if missing.
func (h Host) maven(override string) (user, global string) {
	if override != "" {
		return override, ""
	}
	exists := func(file string) string {
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
			return ""
		}
		return file
	}
	if h.Home != "" {
		user = exists(filepath.Join(h.Home, ".m2/settings.xml"))
	}
	return user, exists(h.Root + "/etc/maven/settings.xml")
}

// composer finds the directory of Composer's settings (its manual, "COMPOSER_HOME"): the first with
// one of the two files.
func (h Host) composer(override string) string {
	dirs := []string{override, h.Getenv("COMPOSER_HOME")}
	if h.Home != "" {
		config := first(h.Getenv("XDG_CONFIG_HOME"), filepath.Join(h.Home, ".config"))
		dirs = append(dirs, filepath.Join(config, "composer"), filepath.Join(h.Home, ".composer"))
	}
	for _, dir := range dirs {
		for _, name := range []string{"config.json", "auth.json"} {
			if _, err := os.Stat(filepath.Join(dir, name)); dir != "" && err == nil {
				return dir
			}
		}
	}
	return ""
}

// setting looks up a variable in upper and lower case, as npm does.
func (h Host) setting(name string) string {
	return first(h.Getenv(name), h.Getenv(strings.ToLower(name)))
}

// bundle finds the file of trusted certificates. A file named in FRE's configuration must exist;
// otherwise bundle returns the first existing file named by environment, tools or distributions.
func (h Host) bundle(override, pip, npm string) (string, error) {
	if override != "" {
		if _, err := os.Stat(override); err != nil {
			return "", fmt.Errorf("ca_certs: %w", err)
		}
		return override, nil
	}
	for _, path := range []string{
		h.Getenv("SSL_CERT_FILE"), pip, h.Getenv("REQUESTS_CA_BUNDLE"), h.Getenv("CURL_CA_BUNDLE"), npm,
		h.Root + "/etc/ssl/certs/ca-certificates.crt", h.Root + "/etc/pki/tls/certs/ca-bundle.crt",
		h.Root + "/etc/ssl/ca-bundle.pem", h.Root + "/etc/ssl/cert.pem",
	} {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", nil
}

type iniValue struct{ section, key, value string }

// readINI reads files of pip and npm: sections, key = value or key: value, comments, and indented
// continuation lines. A missing or unreadable file is empty.
func readINI(path string) ([]iniValue, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []iniValue
	section := ""
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		line := scan.Text()
		text := strings.TrimSpace(line)
		switch {
		case text == "" || text[0] == '#' || text[0] == ';':
			continue
		case text[0] == '[' && text[len(text)-1] == ']':
			section = strings.ToLower(text[1 : len(text)-1])
			continue
		case line[0] == ' ' || line[0] == '\t':
			if n := len(list); n > 0 && list[n-1].section == section {
				list[n-1].value = strings.TrimSpace(list[n-1].value + "\n" + text)
				continue
			}
		}
		at := strings.IndexByte(text, '=')
		if colon := strings.IndexByte(text, ':'); section != "" && colon >= 0 && (at < 0 || colon < at) {
			at = colon
		}
		if at < 0 {
			continue
		}
		value := strings.TrimSpace(text[at+1:])
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		list = append(list, iniValue{section, strings.TrimSpace(text[:at]), value})
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return slices.Clip(list), nil
}
