package image

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/fre-engine/fre/template"
)

// Settings are the host's configuration of package tools, certificates and proxies, read by the
// daemon; FRE's own configuration file can override them. Values may hold credentials: never log
// them or put them into a lock.
type Settings struct {
	Git     []GitCredential
	CACerts string   // host path of the CA bundle
	Env     []string // for all steps: http_proxy, https_proxy, no_proxy in both cases, and variables of tools

	Tools []any // of single tools: see [SettingsOf]
}

// SettingsOf returns the settings of type T in s, or the zero T. The settings of a tool have a type
// of their own, which the package of the tool's site or runtime defines.
func SettingsOf[T any](s Settings) T {
	for _, tool := range s.Tools {
		if own, ok := tool.(T); ok {
			return own
		}
	}
	var none T
	return none
}

// With returns a copy of s with own in the place of the settings of the same type.
func (s Settings) With(own any) Settings {
	s.Tools = slices.Clone(s.Tools)
	i := slices.IndexFunc(s.Tools, func(tool any) bool { return reflect.TypeOf(tool) == reflect.TypeOf(own) })
	if i < 0 {
		s.Tools = append(s.Tools, own)
	} else {
		s.Tools[i] = own
	}
	return s
}

// SettingsOverride is FRE's own configuration for all package tools. A set field replaces the
// host's configuration.
type SettingsOverride struct {
	Git     []GitCredential `yaml:"git"`
	CACerts string          `yaml:"ca_certs"` // path of a PEM bundle
	Proxy   struct {
		HTTP  string `yaml:"http"`
		HTTPS string `yaml:"https"`
		None  string `yaml:"none"` // hosts reached directly, comma-separated
	} `yaml:"proxy"`
}

// ToolConfig is FRE's own configuration of one package tool. A set field replaces the host's
// configuration. The implementations are in runtimes/.
type ToolConfig interface {
	// Read reads the host's configuration of the tool and adds the result to s ([Settings.With]). It
	// returns files of trusted certificates that the tool uses, the best first; "" for none.
	Read(h Host, s *Settings) (certificates []string, err error)
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

// validate returns an error for a faulty credential.
func (c *GitCredential) validate() error {
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

// ConfigHome returns the directory of the user's configuration (XDG Base Directory Specification);
// "" without a home.
func (h Host) ConfigHome() string {
	if h.Home == "" {
		return ""
	}
	return FirstSet(h.Getenv("XDG_CONFIG_HOME"), filepath.Join(h.Home, ".config"))
}

// HostSettings reads the host's configuration of proxies, certificates and the given package tools.
// Unset values stay unset, so that the tools' own defaults apply: FRE knows no host names.
//
// It reads SSL_CERT_FILE and the system's bundle, and http_proxy, https_proxy, no_proxy in both
// cases.
func HostSettings(h Host, over SettingsOverride, tools ...ToolConfig) (Settings, error) {
	if h.Getenv == nil {
		h.Getenv = func(string) string { return "" }
	}
	s := Settings{Git: over.Git}
	for i := range over.Git {
		if err := over.Git[i].validate(); err != nil {
			return Settings{}, fmt.Errorf("packages.git[%d]: %w", i, err)
		}
	}
	for _, p := range []struct{ name, value string }{
		{"http_proxy", over.Proxy.HTTP},
		{"https_proxy", over.Proxy.HTTPS},
		{"no_proxy", over.Proxy.None},
		{"all_proxy", ""},
	} {
		for _, name := range []string{p.name, strings.ToUpper(p.name)} {
			AddVariable(&s.Env, name, FirstSet(p.value, h.Getenv(p.name), h.Getenv(strings.ToUpper(p.name))))
		}
	}
	certificates := []string{h.Getenv("SSL_CERT_FILE")}
	for _, tool := range tools {
		more, err := tool.Read(h, &s)
		if err != nil {
			return Settings{}, err
		}
		certificates = append(certificates, more...)
	}
	var err error
	s.CACerts, err = h.bundle(over.CACerts, certificates)
	return s, err
}

// FirstSet returns the first value that is not blank, without the blanks around it; "" for none.
func FirstSet(values ...string) string {
	for _, v := range values {
		if v = strings.TrimSpace(v); v != "" {
			return v
		}
	}
	return ""
}

// AddVariable adds name=value to an environment, unless value is "".
func AddVariable(env *[]string, name, value string) {
	if value != "" {
		*env = append(*env, name+"="+value)
	}
}

// bundle finds the file of trusted certificates. A file named in FRE's configuration must exist;
// otherwise bundle returns the first existing file that the environment or a tool names, or a
// distribution has.
func (h Host) bundle(override string, named []string) (string, error) {
	if override != "" {
		if _, err := os.Stat(override); err != nil {
			return "", fmt.Errorf("ca_certs: %w", err)
		}
		return override, nil
	}
	for _, path := range append(named,
		h.Root+"/etc/ssl/certs/ca-certificates.crt", h.Root+"/etc/pki/tls/certs/ca-bundle.crt",
		h.Root+"/etc/ssl/ca-bundle.pem", h.Root+"/etc/ssl/cert.pem",
	) {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", nil
}
