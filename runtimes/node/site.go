package node

import (
	_ "embed"
	"time"
)

// Site is the source of packages.npm: the registries of the host's own configuration, by way of
// npm. It implements image.Site.
type Site struct {
	Tools     []string      // Debian packages to add to the base "node" for npm
	Compilers []string      // and for native add-ons
	Patience  time.Duration // time limit of one install script; 0 is ten minutes
}

// Name is "npm".
func (Site) Name() string { return "npm" }

// Bases is FRE's base with node.
func (Site) Bases() []string { return []string{"node"} }

// Env is empty: node finds the packages itself.
func (Site) Env() []string { return nil }

// ProgramDirs is the directory of the links of [Site.Programs].
func (Site) ProgramDirs() []string { return []string{"/" + programsAt} }

const programsAt = "node_modules/.bin"
