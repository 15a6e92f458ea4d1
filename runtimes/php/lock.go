package php

import (
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
)

// Locked is the lock's section of packages.composer. A package's hash is the hash of its tree.
type Locked struct{ image.LockedPackages }

// Section returns an empty section.
func (Site) Section() image.Section { return &Locked{} }

var (
	namePattern   = lazyregexp.New(`^[a-z0-9]([_.-]?[a-z0-9]+)*/[a-z0-9](([_.]|-{1,2})?[a-z0-9]+)*$`)
	lockedVersion = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.+_/#@-]{0,127}$`)
)

// Check refuses bad names, versions and hashes.
func (l *Locked) Check() error {
	return image.CheckPackages(l.Packages, namePattern, lockedVersion)
}
