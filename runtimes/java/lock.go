package java

import (
	"slices"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
)

// Locked is the lock's section of packages.maven. A package is a jar, in the order of Maven's class
// path, named group:artifact or group:artifact:classifier. Provided are jars for the compiler only;
// no image has them.
type Locked struct {
	image.LockedPackages
	Provided []image.LockedPackage `json:"provided,omitempty"`
}

// Section returns an empty section.
func (Site) Section() image.Section { return &Locked{} }

var jarPattern = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*){1,2}$`)

// Check refuses bad coordinates and hashes.
func (l *Locked) Check() error {
	return image.CheckPackages(l.jars(), jarPattern, image.LockedVersion)
}

// jars returns all jars, with those for the compiler last.
func (l *Locked) jars() []image.LockedPackage { return slices.Concat(l.Packages, l.Provided) }
