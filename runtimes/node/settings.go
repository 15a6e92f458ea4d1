package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
)

// Config is FRE's own configuration of npm. It implements image.ToolConfig.
type Config struct {
	Registry string `yaml:"registry"` // URL
	Config   string `yaml:"config"`   // path of an npmrc
}

// Settings are the host's settings of npm.
type Settings struct {
	RC string // host path of an npmrc to bind, "" for none
}

// Read reads npm's npmrc files and environment (npmrc(5)).
func (c Config) Read(h image.Host, s *image.Settings) (certificates []string, err error) {
	npm, err := configured(h, c.Config)
	if err != nil {
		return nil, err
	}
	*s = s.With(Settings{RC: npm.file})
	image.AddVariable(&s.Env, "npm_config_registry", image.FirstSet(c.Registry, npm.env["registry"]))
	for _, key := range []string{"proxy", "https-proxy", "noproxy", "strict-ssl"} {
		image.AddVariable(&s.Env, "npm_config_"+strings.ReplaceAll(key, "-", "_"), npm.env[key])
	}
	return []string{npm.cafile}, nil
}

type npmSettings struct {
	file   string            // the user's npmrc, otherwise the host's
	env    map[string]string // values that must come by environment
	cafile string
}

// configured chooses the npmrc to bind. Only one can be bound, so plain keys of the rest become
// environment, which npm ranks above every file.
func configured(h image.Host, override string) (npmSettings, error) {
	s := npmSettings{env: map[string]string{}}
	files := []string{override} // best first
	if override == "" {
		files = []string{setting(h, "NPM_CONFIG_USERCONFIG")}
		if files[0] == "" && h.Home != "" {
			files[0] = filepath.Join(h.Home, ".npmrc")
		}
		if global := setting(h, "NPM_CONFIG_GLOBALCONFIG"); global != "" {
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
		list, err := install.ReadINI(file)
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
			if v.Section != "" {
				continue
			}
			if v.Key == "cafile" && s.cafile == "" {
				s.cafile = v.Value
			}
			switch _, set := s.env[v.Key]; {
			case bound:
				own[v.Key] = true
			case !own[v.Key] && !set:
				s.env[v.Key] = v.Value
			}
		}
	}
	if override == "" {
		for _, key := range []string{"registry", "proxy", "https-proxy", "noproxy", "strict-ssl"} {
			if v := setting(h, "NPM_CONFIG_"+strings.ToUpper(strings.ReplaceAll(key, "-", "_"))); v != "" {
				s.env[key] = v
			}
		}
		s.cafile = image.FirstSet(setting(h, "NPM_CONFIG_CAFILE"), s.cafile)
	}
	return s, nil
}

// setting looks up a variable in upper and lower case, as npm does.
func setting(h image.Host, name string) string {
	return image.FirstSet(h.Getenv(name), h.Getenv(strings.ToLower(name)))
}
