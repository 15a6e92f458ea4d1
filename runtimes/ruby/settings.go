package ruby

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/fre-engine/fre/image"
)

// Config is FRE's own configuration of RubyGems. It implements image.ToolConfig.
type Config struct {
	Sources []string `yaml:"sources"` // URLs
}

// Settings are the host's settings of RubyGems.
type Settings struct {
	Sources []string // URLs of gem sources, empty for RubyGems' default; may hold passwords
}

// Read reads RubyGems' configuration files.
func (c Config) Read(h image.Host, s *image.Settings) (certificates []string, err error) {
	sources := c.Sources
	if len(sources) == 0 {
		if sources, err = configured(h); err != nil {
			return nil, err
		}
	}
	*s = s.With(Settings{Sources: sources})
	return nil, nil
}

// configured reads RubyGems' configuration (gem help environment): the host's gemrc, the user's,
// and the files in GEMRC. The last file with sources wins.
func configured(h image.Host) ([]string, error) {
	files := []string{h.Root + "/etc/gemrc"}
	if h.Home != "" {
		config := h.ConfigHome()
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
