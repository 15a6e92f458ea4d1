package php

import (
	"os"
	"path/filepath"

	"github.com/fre-engine/fre/image"
)

// Config is FRE's own configuration of Composer. It implements image.ToolConfig.
type Config struct {
	Home string `yaml:"home"` // directory of config.json and auth.json
}

// Settings are the host's settings of Composer.
type Settings struct {
	Home string   // host directory of config.json and auth.json, "" for none
	Env  []string // COMPOSER_AUTH
}

// Read looks for the directory of Composer's settings, and for COMPOSER_AUTH.
func (c Config) Read(h image.Host, s *image.Settings) (certificates []string, err error) {
	own := Settings{Home: configured(h, c.Home)}
	image.AddVariable(&own.Env, "COMPOSER_AUTH", h.Getenv("COMPOSER_AUTH"))
	*s = s.With(own)
	return nil, nil
}

// configured finds the directory of Composer's settings (its manual, "COMPOSER_HOME"): the first with
// one of the two files.
func configured(h image.Host, override string) string {
	dirs := []string{override, h.Getenv("COMPOSER_HOME")}
	if h.Home != "" {
		config := h.ConfigHome()
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
