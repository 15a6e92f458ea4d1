package image

import (
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/store"
)

// Base environments and tool images are in the store as "base/NAME" and "tools/NAME-HASH": a
// function's id cannot have a slash. Their version is the codename of the distribution's release,
// so a base of two releases has two versions.
const (
	basePrefix  = "base/"
	toolsPrefix = "tools/"
)

// layoutVersion increases when the builder itself places other files in a base.
const layoutVersion = 1

// systemPath is the PATH of base environments and build steps.
const systemPath = "PATH=/usr/local/bin:/usr/bin:/bin"

// systemTime is the time stamp of files that the builder writes: equal input gives equal images.
var systemTime = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	codePrefix      = "function" // the function's files, in the image
	bootstrapPrefix = "opt/fre"
	maxIgnoreBytes  = 64 << 10
)

// debKind is the kind of a part with one Debian package.
const debKind = "deb"

const parkedPrefix = toolsPrefix + "shell-" // stores have images with this name

// ReservedName reports whether a name is reserved for images that builds find and trust: base
// environments and tools.
func ReservedName(name string) bool {
	return strings.HasPrefix(name, basePrefix) || strings.HasPrefix(name, toolsPrefix)
}

// shared reports whether a part belongs to the system below the function, and so may be present
// before the function is known.
func shared(p store.Part) bool {
	return p.Kind == "base" || p.Kind == "bootstrap" || p.Kind == debKind
}

func sharedParts(img *store.Image) []store.Part {
	return slices.DeleteFunc(slices.Clone(img.Parts), func(p store.Part) bool { return !shared(p) })
}
