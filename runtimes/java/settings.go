package java

import (
	"os"
	"path/filepath"

	"github.com/fre-engine/fre/image"
)

// Config is FRE's own configuration of Maven. It implements image.ToolConfig.
type Config struct {
	Settings string `yaml:"settings"` // path of a settings.xml
}

// Settings are the host's settings of Maven: host paths of the user's and the machine's
// settings.xml, "" for none.
type Settings struct{ User, Machine string }

// Read looks for Maven's settings files.
func (c Config) Read(h image.Host, s *image.Settings) (certificates []string, err error) {
	user, machine := configured(h, c.Settings)
	*s = s.With(Settings{user, machine})
	return nil, nil
}

// configured finds Maven's settings (maven.apache.org/settings.html). A file named in FRE's
// configuration is used even if missing.
func configured(h image.Host, override string) (user, global string) {
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
