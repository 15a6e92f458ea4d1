package oci

import (
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// platform is the engine's platform.
func platform() string { return "linux/" + runtime.GOARCH }

// archNames translates architecture names into values of GOARCH, as containerd does (platforms,
// database.go): uname's names, and 32-bit names. The engine runs no 32-bit images, but its errors
// name them rightly.
var archNames = map[string]v1.Platform{
	"x86_64": {Architecture: "amd64"}, "x86-64": {Architecture: "amd64"}, "aarch64": {Architecture: "arm64"},
	"i386": {Architecture: "386"}, "i486": {Architecture: "386"}, "i586": {Architecture: "386"}, "i686": {Architecture: "386"},
	"armhf": {Architecture: "arm", Variant: "v7"}, "armel": {Architecture: "arm", Variant: "v6"},
}

// normal returns the platform in the names of GOOS and GOARCH, in lower case, without a variant
// that all processors of the architecture have.
func normal(p v1.Platform) v1.Platform {
	p.OS, p.Architecture, p.Variant = strings.ToLower(p.OS), strings.ToLower(p.Architecture), strings.ToLower(p.Variant)
	if a, ok := archNames[p.Architecture]; ok {
		p.Architecture = a.Architecture
		if p.Variant == "" {
			p.Variant = a.Variant
		}
	}
	if p.Architecture == "amd64" && p.Variant == "v1" || p.Architecture == "arm64" && (p.Variant == "v8" || p.Variant == "8") {
		p.Variant = ""
	}
	return p
}

var variant = regexp.MustCompile(`^(v[0-9]+(\.[0-9]+)?)?$`)

// fits reports whether the engine runs images for the platform. Images of docker import may name no
// platform. The variant does not matter: programs detect the processor's features.
func fits(p v1.Platform) bool {
	p = normal(p)
	return (p.OS == "" || p.OS == "linux") && (p.Architecture == "" || p.Architecture == runtime.GOARCH) && variant.MatchString(p.Variant)
}

// parsePlatform reads a platform as docker's clients write it: OS, ARCHITECTURE,
// OS/ARCHITECTURE[/VARIANT] or the OCI's JSON; "" is the engine's. Errors: [ErrPlatform] for a
// platform that the engine does not run.
func parsePlatform(s string) (v1.Platform, error) {
	var p v1.Platform
	words := strings.Split(s, "/")
	switch {
	case strings.HasPrefix(s, "{"):
		if err := json.Unmarshal([]byte(s), &p); err != nil {
			return p, fmt.Errorf("%w: %q is not JSON: write {\"os\":\"linux\",\"architecture\":%q}", ErrPlatform, s, runtime.GOARCH)
		}
	case len(words) > 3:
		return p, fmt.Errorf("%w: %q: write OS/ARCHITECTURE, as in %s", ErrPlatform, s, platform())
	case len(words) > 1:
		p.OS, p.Architecture = words[0], words[1]
		p.Variant = strings.Join(words[2:], "")
	case strings.EqualFold(s, "linux"):
		p.OS = s
	default:
		p.Architecture = s
	}
	if !fits(p) {
		return p, fmt.Errorf("%w: %q: the engine runs %s", ErrPlatform, s, platform())
	}
	p = normal(p)
	p.OS, p.Architecture = "linux", runtime.GOARCH
	return p, nil
}

// CheckPlatform checks that the engine runs images for a platform, as clients write it; "" is the
// engine's. Errors: [ErrPlatform].
func CheckPlatform(s string) error {
	_, err := parsePlatform(s)
	return err
}
