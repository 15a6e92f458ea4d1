package runtimes

import (
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/golang"
	"github.com/fre-engine/fre/runtimes/java"
	"github.com/fre-engine/fre/runtimes/node"
	"github.com/fre-engine/fre/runtimes/php"
	"github.com/fre-engine/fre/runtimes/python"
	"github.com/fre-engine/fre/runtimes/ruby"
)

// PackagesConfig is FRE's own configuration of package tools. A set field replaces the host's
// configuration.
type PackagesConfig struct {
	image.SettingsOverride `yaml:",inline"`

	Pip      python.Config `yaml:"pip"`
	NPM      node.Config   `yaml:"npm"`
	Gem      ruby.Config   `yaml:"gem"`
	Composer php.Config    `yaml:"composer"`
	Go       golang.Config `yaml:"go"`
	Maven    java.Config   `yaml:"maven"`
}

// Settings reads the host's configuration of all package tools, proxies and certificates.
func (c *PackagesConfig) Settings(h image.Host) (image.Settings, error) {
	return image.HostSettings(h, c.SettingsOverride, c.Pip, c.NPM, c.Gem, c.Composer, c.Go, c.Maven)
}
